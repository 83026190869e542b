// Fuzz target for libFuzzer: TLS records that arrive after an honest handshake, at the data port and at its client.
//
// OpenSSL makes the handshake for the other side. Then an input is a list of actions under the keys of the session:
// data, handshake messages, updates of keys, alerts and records of any type, whole, cut, damaged, out of order or
// not sealed at all. Nothing of it may crash, hang, or keep more memory than a connection is worth.

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <optional>
#include <thread>
#include <utility>

#include "../../gigl_loader/csrc/data_client.h"
#include "port_harness.h"
#include "tls_peer.h"

namespace gigl {
namespace {

constexpr double kSoonS = 5.0, kShortS = 0.002;
constexpr size_t kMaxFlood = 200, kFloods = 15;  // more messages without data than a connection may send
constexpr size_t kMostRecords = 3000;         // in floods of one input
constexpr size_t kMaxRecordBytes = 17 << 10;  // more than TLS allows
constexpr size_t kKeptBytes = 64 << 10;       // more than an idle connection takes, by both sides
constexpr uint8_t kChangeCipher = 20, kAlert = 21, kHandshake = 22, kData = 23;
constexpr uint8_t kUpdateMessage = 24;

const KeyPair& Pair() {
  static const KeyPair pair = NewKeyPair();
  return pair;
}

// Sends what the actions of an input say.
class Actor {
 public:
  Actor(TlsPeer& peer, RawSocket& socket) : peer_(peer), socket_(socket) {}

  // `step` lets the other side read.
  void Act(Input& input, const std::function<void()>& step) {
    switch (input.Below(14)) {
      case 0: return SendPiece(peer_.Seal(kData, input.Bytes(input.Below(80))), input, step);
      case 1: return SendPiece(peer_.Seal(kData, Message(input)), input, step);
      case 2: return SendPiece(peer_.Seal(input.Take<uint8_t>(), input.Bytes(input.Below(80))), input, step);
      case 3: return UpdateKeys(input, step);
      case 4: return SendRecord(kAlert, {{std::byte{input.Take<uint8_t>()}, std::byte{input.Take<uint8_t>()}}});
      case 5: return Flood(input, step);
      case 6: {
        auto record = peer_.Seal(kData, input.Bytes(input.Below(80)));
        record[input.Take<uint16_t>() % record.size()] ^= std::byte{input.Take<uint8_t>()};
        return socket_.Send(record);
      }
      case 7: return socket_.Send(input.Bytes(input.Below(80)));
      case 8: {
        const auto record = peer_.Seal(kData, input.Bytes(input.Below(80)));
        return socket_.Send(std::span<const std::byte>(record).first(input.Below(record.size())));
      }
      case 9: return SendRecord(kData, Buffer(input.Take<uint16_t>() % kMaxRecordBytes, std::byte{'y'}));
      case 10: return peer_.Skip(input.Take<uint8_t>());
      case 11: return SendPiece(peer_.Seal(kHandshake, Handshake(input)), input, step);
      case 12: return socket_.EndOfBytes();
      default: return step();
    }
  }

  Buffer Message(Input& input) {
    Buffer out;
    const auto text = input.Bytes(input.Below(40)), body = input.Bytes(input.Below(40));
    const uint16_t version = input.Below(4) == 1 ? 0 : kDataVersion;
    if (input.Below(2) == 0) AppendRequest(out, text, body, body.size(), version, 0);
    else AppendReply(out, body, body.size(), static_cast<uint8_t>(input.Below(3)), 0, version);
    return out;
  }

 private:
  // Whether a flood is over: the other side has ended the connection, looked at each 32 records, or enough were sent.
  bool Ended(size_t record) { return ++flood_ > kMostRecords || (record % 32 == 0 && socket_.HasEnd()); }

  void SendRecord(uint8_t type, const Buffer& text) { socket_.Send(peer_.Seal(type, text)); }

  // One record in up to three pieces.
  void SendPiece(const Buffer& record, Input& input, const std::function<void()>& step) {
    auto left = std::span<const std::byte>(record);
    for (size_t pieces = input.Below(3); pieces > 0 && !left.empty(); --pieces) {
      const size_t cut = input.Take<uint16_t>() % left.size();
      socket_.Send(left.first(cut));
      left = left.subspan(cut);
      step();
    }
    socket_.Send(left);
  }

  void UpdateKeys(Input& input, const std::function<void()>& step) {
    const bool steps = input.Below(2) == 0;
    const size_t count = (1 + input.Below(kMaxFlood)) * (input.Below(4) == 1 ? kFloods : 1);
    const Buffer message{std::byte{kUpdateMessage}, std::byte{0}, std::byte{0}, std::byte{1},
                         std::byte{input.Take<uint8_t>()}};
    const size_t cut = input.Below(2 * message.size());  // the message in two records
    for (size_t i = 0; i < count && !Ended(i); ++i) {
      const auto first = std::span<const std::byte>(message).first(std::min(cut, message.size()));
      if (!first.empty() && first.size() < message.size()) socket_.Send(peer_.Seal(kHandshake, first));
      const auto rest = first.size() < message.size() ? std::span(message).subspan(first.size()) : std::span(message);
      socket_.Send(peer_.Seal(kHandshake, rest));
      peer_.NextKeys();
      if (steps) step();
    }
  }

  // Records without data: empty ones, paddings, warnings.
  void Flood(Input& input, const std::function<void()>& step) {
    const size_t count = (1 + input.Below(kMaxFlood)) * (input.Below(4) == 1 ? kFloods : 1);
    const size_t padding = input.Take<uint8_t>();
    const uint8_t type = std::array{kData, kHandshake, kAlert, kChangeCipher}[input.Below(4)];
    const Buffer text = type == kAlert ? Buffer{std::byte{1}, std::byte{100}} : Buffer{};
    for (size_t i = 0; i < count && !Ended(i); ++i) socket_.Send(peer_.Seal(type, text, padding));
    step();
  }

  // A handshake message of any type, whose length may lie.
  static Buffer Handshake(Input& input) {
    Buffer out{std::byte{input.Take<uint8_t>()}, std::byte{0}, std::byte{0}, std::byte{input.Take<uint8_t>()}};
    const auto body = input.Bytes(input.Below(80));
    out.insert(out.end(), body.begin(), body.end());
    return out;
  }

  TlsPeer& peer_;
  RawSocket& socket_;
  size_t flood_ = 0;
};

// --- at the server

class Server {
 public:
  Server()
      : server_(TlsContext::Server(Pair().certificate, Pair().key, ""), nullptr,
                [this](DataCall& call) { Answer(call); }) {}

  // Actions of a stranger, or of a caller that has had a call.
  void Run(Input& input, TlsVersion version, bool stranger) {
    if (!std::exchange(warm_, true)) {  // memory of threads, not of connections
      Input nothing(std::span<const uint8_t>{});
      Run(nothing, version, false);
    }
    RawSocket socket = server_.Connect();
    TlsPeer peer(socket.fd(), version, nullptr);
    const auto until = Clock::now() + std::chrono::seconds(5);
    while (!peer.Handshake()) {
      pollfd polled{socket.fd(), POLLIN, 0};
      poll(&polled, 1, 1);
      FUZZ_CHECK(Clock::now() < until);
    }
    socket.NoteSent(peer.written());
    Actor actor(peer, socket);
    for (int calls = 0; calls < 2 && !stranger; ++calls) CheckHonest(actor, peer, socket);
    server_.Step(socket);
    const size_t before = AllocatedBytes();
    input_ = &input;
    const auto step = [&] { server_.Step(socket); };
    while (!input.empty()) actor.Act(input, step);
    server_.Step(socket);
    const size_t kept = AllocatedBytes();
    if (kept > before + kKeptBytes) std::fprintf(stderr, "%zu bytes are kept\n", kept - before);
    FUZZ_CHECK(kept <= before + kKeptBytes);
    socket.Reset();
    server_.Settle();
  }

 private:
  // The session works, and so do the keys of the peer: otherwise the target would try nothing.
  void CheckHonest(Actor& actor, TlsPeer& peer, RawSocket& socket) {
    const uint8_t fields[] = {2, 'h', 'i', 2, 'y', 'o', 0, 0};
    Input honest(fields);
    Input plain(std::span<const uint8_t>{});
    input_ = &plain;
    socket.Send(peer.Seal(kData, actor.Message(honest)));
    server_.Expect();
    std::byte reply[256];
    size_t got = 0;
    const auto until = Clock::now() + std::chrono::seconds(5);
    while (got < kHeadBytes + 2 + kTrailerBytes) {
      got += peer.Read(std::span(reply).subspan(got));
      FUZZ_CHECK(Clock::now() < until);
    }
    FUZZ_CHECK(std::memcmp(reply + kHeadBytes, "yo", 2) == 0);
  }

  void Answer(DataCall& call) {
    const size_t kind = input_->Below(8);
    if (kind == 1) return;
    Buffer body;
    if (kind != 2 && call.head().body_bytes <= kMaxFuzzBody) {
      body.resize(call.head().body_bytes);
      call.ReadBody(body, Patience::Of(kShortS, kShortS));
    }
    const Patience patience = Patience::Of(kSoonS, kSoonS);
    if (kind == 3) call.Refuse(body, false, patience);
    else call.Reply({body}, nullptr, 0, patience);
  }

  SteppedServer server_;
  Input* input_ = nullptr;
  bool warm_ = false;
};

// --- at the client

class Client {
 public:
  Client() : listeners_(Listen("127.0.0.1", port_)), tls_(TlsContext::Client(Pair().certificate, "", "")) {}

  void Run(Input& input, TlsVersion version) {
    DataClient client("127.0.0.1", port_, tls_);
    std::optional<RawSocket> socket;
    std::optional<TlsPeer> peer;
    std::thread accepting([&] {
      pollfd polled{listeners_[0].get(), POLLIN, 0};
      poll(&polled, 1, 5000);
      socket.emplace(Descriptor(accept4(polled.fd, nullptr, nullptr, SOCK_CLOEXEC)));
      peer.emplace(socket->fd(), version, &Pair());
      while (!peer->Handshake()) {
        pollfd received{socket->fd(), POLLIN, 0};
        FUZZ_CHECK(poll(&received, 1, 5000) == 1);
      }
    });
    client.Connect(kSoonS);
    accepting.join();
    Actor actor(*peer, *socket);
    try {
      while (!input.empty() && client.reusable()) Call(input, actor, client);
    } catch (const StreamError&) {
    }
    socket->Reset();
  }

 private:
  void Call(Input& input, Actor& actor, DataClient& client) {
    for (size_t actions = 1 + input.Below(8); actions > 0; --actions) actor.Act(input, [] {});
    client.IsStale();
    const ReplyHead head = client.Call("a header", std::as_bytes(std::span("a body")), kShortS);
    Buffer received(std::min<uint64_t>(head.payload_bytes, kMaxFuzzBody));
    client.Read(received);
    if (received.size() == head.payload_bytes) client.Finish();
  }

  uint16_t port_ = 0;
  const std::vector<Descriptor> listeners_;
  const std::shared_ptr<const TlsContext> tls_;
};

}  // namespace

std::vector<std::vector<uint8_t>> Seeds() {
  std::vector<std::vector<uint8_t>> seeds;
  for (const uint8_t mode : {0, 1, 2, 3, 4, 5}) {
    seeds.push_back({mode, 1, 2, 'h', 'i', 3, 'y', 'o', 'u', 0, 0, 0, 13});            // a request
    seeds.push_back({mode, 1, 0, 3, 'y', 'o', 'u', 0, 1, 0, 0, 13});                   // a reply
    seeds.push_back({mode, 3, 0, 4, 0, 1, 9, 13, 1, 2, 'h', 'i', 3, 'y', 'o', 'u', 0, 0, 0, 13});  // updates of keys
    seeds.push_back({mode, 3, 0, 199, 1, 1, 9, 13, 3, 1, 199, 1, 1, 9, 13});           // many of them
    seeds.push_back({mode, 5, 9, 0, 0, 0, 13, 5, 9, 1, 2, 2, 13, 4, 1, 0, 13});              // empty records, warnings
    seeds.push_back({mode, 5, 29, 0, 255, 0, 0, 1, 'G', 0, 13});                       // padding, then a byte
    seeds.push_back({mode, 11, 0, 0, 0, 0, 13, 6, 4, 'a', 'b', 'c', 'd', 9, 0, 1, 13});  // a message, damage
    seeds.push_back({mode, 0, 3, 'G', 'I', 'G', 0, 8, 3, 'a', 'b', 'c', 4, 12, 13});   // half a head, half a record
  }
  return seeds;
}

}  // namespace gigl

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gigl::Input input({data, size});
  static gigl::Server server;
  static gigl::Client client;
  const size_t mode = input.Below(8);
  const auto version = (mode & 1) == 0 ? gigl::TlsVersion::k13 : gigl::TlsVersion::k12;
  if ((mode & 2) == 0) server.Run(input, version, (mode & 4) != 0);
  else client.Run(input, version);
  return 0;
}
