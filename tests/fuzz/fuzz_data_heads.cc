// Fuzz target for libFuzzer: bytes that arrive at the plain data port, and replies that arrive at its client.
//
// An input is a list of actions. Beside raw bytes there are heads of any fields with a right checksum, which
// mutation alone would never find, whole or damaged, in pieces. What is honest must arrive unchanged.

#include <sys/socket.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "../../gigl_loader/csrc/data_client.h"
#include "port_harness.h"

namespace gigl {
namespace {

constexpr size_t kMaxFill = 5000;  // more than a header text may have
constexpr double kSoonS = 5.0, kShortS = 0.001;

Buffer Filled(Input& input) {
  const auto bytes = input.Bytes(input.Below(64));
  Buffer out(bytes.begin(), bytes.end());
  if (input.Below(4) == 1) out.resize(out.size() + input.Take<uint16_t>() % kMaxFill, std::byte{'x'});
  return out;
}

// Flips one byte, or none. Returns whether it did.
bool Damage(Input& input, Buffer& bytes) {
  const auto mask = std::byte{input.Take<uint8_t>()};
  if (bytes.empty() || std::to_integer<int>(mask) < 128) return false;
  bytes[input.Take<uint16_t>() % bytes.size()] ^= mask;
  return true;
}

constexpr std::string_view kTokenLine = "authorization: good";

// Whether a header text shows the token, by one line of its own.
bool ShowsToken(const Buffer& text) {
  std::string_view left(reinterpret_cast<const char*>(text.data()), text.size());
  size_t lines = 0, right = 0;
  while (true) {
    const size_t size = left.find_first_of("\r\n");
    const auto line = left.substr(0, size);
    lines += line.substr(0, 15) == "authorization: ";
    right += line == kTokenLine;
    if (size == left.npos) return lines == 1 && right == 1;
    left.remove_prefix(size + 1);
  }
}

Buffer BytesOf(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// --- requests, at the server

struct Request {
  Buffer text;
  Buffer body;
  uint16_t flags;
};

class Server {
 public:
  Server()
      : server_(nullptr,
                std::make_shared<AcceptedTokens>(std::vector<std::string>{"good"}, "a record that says no"),
                [this](DataCall& call) { Answer(call); }) {}

  void Run(Input& input) {
    input_ = &input;
    caller_.emplace(server_.Connect());
    honest_ = true;
    trusted_ = false;
    unsent_ = {};
    while (!input.empty()) Act(input);
    caller_->Receive();
    caller_->Reset();
    server_.Settle();
  }

 private:
  void Act(Input& input) {
    switch (input.Below(5)) {
      case 0: return Send(input);
      case 1:
        honest_ = false;
        return caller_->Send(input.Bytes(input.Below(80)));
      case 2:
        honest_ = false;
        caller_->EndOfBytes();
        return server_.Step(*caller_);
      case 3:
        honest_ = false;
        caller_->Send(Buffer(input.Take<uint16_t>(), std::byte{input.Take<uint8_t>()}));
        return;
      default: return server_.Step(*caller_);
    }
  }

  // Sends a request in up to four pieces, and runs the server after each.
  void Send(Input& input) {
    Request request{Filled(input), Filled(input), input.Take<uint16_t>()};
    if (input.Below(4) != 1) {
      const Buffer line = BytesOf("authorization: good\n");
      request.text.insert(request.text.begin(), line.begin(), line.end());
    }
    const bool lies = input.Below(4) == 1;
    const uint64_t announced = lies ? input.Take<uint64_t>() : request.body.size();
    Buffer bytes;
    AppendRequest(bytes, request.text, request.body, announced, input.Below(4) == 1 ? input.Take<uint16_t>() : kDataVersion,
                  request.flags);
    if (Damage(input, bytes) || announced != request.body.size()) honest_ = false;
    const bool refused = request.text.size() > kMaxHeaderText || (!trusted_ && !ShowsToken(request.text));
    if (honest_ && !refused) expected_ = std::move(request);

    const size_t pieces = input.Below(4);
    unsent_ = bytes;
    for (size_t i = 0; i < pieces && !unsent_.empty(); ++i) {
      SendPiece(input.Take<uint16_t>() % unsent_.size());
      server_.Step(*caller_);
    }
    SendPiece(unsent_.size());
    if (expected_) server_.Expect();
    else server_.Step(*caller_);
    if (refused) honest_ = false;
  }

  void SendPiece(size_t size) {
    caller_->Send(unsent_.first(size));
    unsent_ = unsent_.subspan(size);
  }

  void Answer(DataCall& call) {
    const auto request = std::exchange(expected_, std::nullopt);
    FUZZ_CHECK(trusted_ || ShowsToken(BytesOf(call.header())));
    SendPiece(unsent_.size());
    const bool honest = request.has_value();
    honest_ = false;  // until the reply is there and lets the connection go on
    if (honest) FUZZ_CHECK(BytesOf(call.header()) == request->text);
    if (honest) FUZZ_CHECK(call.head().body_bytes == request->body.size());
    trusted_ = true;
    const size_t kind = input_->Below(8);
    if (kind == 1) return;
    if (kind == 2) call.Cancel();
    Buffer body;
    if (kind != 3 && call.head().body_bytes <= kMaxFuzzBody) {
      body.resize(call.head().body_bytes);
      const bool matches = call.ReadBody(body, Patience::Of(honest ? kSoonS : 0.0, kSoonS));
      if (honest) FUZZ_CHECK(matches && body == request->body);
    }
    Reply(call, body, kind);
    caller_->Receive();
    if (honest && kind != 2) CheckReply(*request, kind == 3 ? Buffer() : request->body, kind);
    caller_->received.clear();
  }

  void Reply(DataCall& call, const Buffer& body, size_t kind) {
    const Patience patience = Patience::Of(kSoonS, kSoonS);
    if (kind == 4 || kind == 5) return call.Refuse(body, kind == 4, patience);
    const size_t cut = body.empty() ? 0 : input_->Take<uint16_t>() % body.size();
    const auto whole = std::span<const std::byte>(body);
    if (kind == 7 && body.size() == call.head().body_bytes) {  // it waits, and its caller may leave meanwhile
      const auto kept = std::make_shared<const Buffer>(body);
      const auto bytes = std::span<const std::byte>(*kept);
      call.Wait();
      return call.Post({bytes.first(cut), bytes.subspan(cut)}, kept, 9, kSoonS);
    }
    const uint32_t crc = Crc32c(body);
    call.Reply({whole.first(cut), whole.subspan(cut)}, kind == 6 ? &crc : nullptr, 9, patience);
  }

  void CheckReply(const Request& request, const Buffer& payload, size_t kind) {
    const auto& bytes = caller_->received;
    FUZZ_CHECK(bytes.size() == kHeadBytes + payload.size() + kTrailerBytes);
    const auto head = ReadHead<ReplyHead>(bytes);
    FUZZ_CHECK(head && head->crc == HeadCrc(*head) && head->payload_bytes == payload.size());
    FUZZ_CHECK(head->status == (kind == 4 || kind == 5 ? kReplyRefused : kReplyOk));
    FUZZ_CHECK(std::ranges::equal(std::span(bytes).subspan(kHeadBytes, payload.size()), payload));
    uint32_t trailer;
    std::memcpy(&trailer, bytes.data() + bytes.size() - kTrailerBytes, kTrailerBytes);
    if ((request.flags & kChecksumUnread) == 0) FUZZ_CHECK(trailer == Crc32c(payload));
    honest_ = (head->flags & kReplyCloses) == 0;
  }

  SteppedServer server_;
  Input* input_ = nullptr;
  std::optional<RawSocket> caller_;
  std::span<const std::byte> unsent_;
  std::optional<Request> expected_;  // whose call has to come
  bool trusted_ = false;             // this connection has had a call
  bool honest_ = true;               // all that this connection has sent is whole requests
};

// --- replies, at the client

class Client {
 public:
  Client() : listeners_(Listen("127.0.0.1", port_)) {}

  void Run(Input& input) {
    DataClient client("127.0.0.1", port_, nullptr);
    client.Connect(kSoonS);
    Descriptor accepted;
    while (!accepted) accepted = Descriptor(accept4(listeners_[0].get(), nullptr, nullptr, SOCK_CLOEXEC));
    RawSocket server(std::move(accepted));
    try {
      open_ = true;
      while (!input.empty() && open_ && client.reusable()) Call(input, client, server);
      client.IsStale();
    } catch (const std::exception& error) {
      if (honest_) std::fprintf(stderr, "%s\n", error.what());
      FUZZ_CHECK(!honest_);
    }
    server.Reset();
  }

 private:
  void Call(Input& input, DataClient& client, RawSocket& server) {
    honest_ = false;
    const Buffer payload = Filled(input);
    const uint64_t announced = input.Below(4) == 1 ? input.Take<uint64_t>() : payload.size();
    const auto status = static_cast<uint8_t>(input.Below(3)), flags = static_cast<uint8_t>(input.Below(2));
    const uint16_t version = input.Below(4) == 1 ? input.Take<uint16_t>() : kDataVersion;
    Buffer bytes;
    AppendReply(bytes, payload, announced, status, flags, version);
    const bool damaged = Damage(input, bytes);
    const size_t kind = input.Below(8);
    if (kind == 1) bytes.resize(input.Take<uint16_t>() % (bytes.size() + 1));
    const auto extra = kind == 2 ? input.Bytes(input.Below(64)) : std::span<const std::byte>();
    bytes.insert(bytes.end(), extra.begin(), extra.end());
    const bool whole = kind != 1 && extra.empty() && !damaged && announced == payload.size();
    const bool known = status == kReplyOk ? version == kDataVersion : status == kReplyRefused;
    if (kind == 3) client.Cancel();
    server.Send(bytes);
    if (kind == 4) server.EndOfBytes();
    if (kind == 5) server.Reset();
    open_ = kind != 4 && kind != 5;

    const Buffer text = Filled(input), body = Filled(input);
    const std::string_view header(reinterpret_cast<const char*>(text.data()), std::min(text.size(), kMaxHeaderText));
    honest_ = whole && known && open_ && kind != 3 && (status == kReplyOk || announced <= kMaxRefusal);
    const ReplyHead head = client.Call(header, body, whole ? kSoonS : kShortS);
    FUZZ_CHECK(status <= kReplyRefused || damaged);
    Buffer received(std::min<uint64_t>(head.payload_bytes, kMaxFuzzBody));
    for (std::span<std::byte> left(received); !left.empty();) {
      const auto piece = left.first(std::min<size_t>(left.size(), 1 + input.Take<uint16_t>() % 4096));
      client.Read(piece);
      left = left.subspan(piece.size());
    }
    const bool matches = client.Finish();
    if (honest_) FUZZ_CHECK(matches && received == payload && client.reusable() == (flags == 0));
    if (matches && !damaged) FUZZ_CHECK(received.size() == announced);
    server.Receive();
    server.received.clear();
  }

  uint16_t port_ = 0;
  const std::vector<Descriptor> listeners_;
  bool open_ = true;     // the server has not ended the connection
  bool honest_ = false;  // the call under way has to succeed
};

}  // namespace

std::vector<std::vector<uint8_t>> Seeds() {
  const std::vector<uint8_t> request{0, 4, 'g', 'o', 'o', 'd', 0, 6, 'a', ' ', 'b', 'o', 'd', 'y', 0, 0, 0, 0, 0, 0, 0, 0, 0};
  const std::vector<uint8_t> pieces{0, 4, 'g', 'o', 'o', 'd', 1, 200, 15, 2, 'o', 'k', 1, 16, 0, 1, 0, 0, 0, 0, 0, 3,
                                    9, 0, 70, 0, 90, 1, 0, 5};
  std::vector<uint8_t> raw{0, 1, 32, 'G', 'I', 'G', 'L', 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 2};
  const std::vector<uint8_t> reply{4, 'd', 'a', 't', 'a', 0, 0, 0, 0, 0, 0, 0, 2, 'h', 'i', 0, 0, 0, 9, 0};
  std::vector<std::vector<uint8_t>> seeds;
  for (const auto* of : {&request, &pieces}) {
    std::vector<uint8_t> seed{0};
    for (int i = 0; i < 3; ++i) seed.insert(seed.end(), of->begin(), of->end());
    seeds.push_back(seed);
  }
  seeds.push_back(raw);
  std::vector<uint8_t> seed{1};
  for (int i = 0; i < 3; ++i) seed.insert(seed.end(), reply.begin(), reply.end());
  seeds.push_back(seed);
  return seeds;
}

}  // namespace gigl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gigl::Input input({data, size});
  static gigl::Server server;
  static gigl::Client client;
  if (input.Below(2) == 0) server.Run(input);
  else client.Run(input);
  return 0;
}
