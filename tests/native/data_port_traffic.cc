// Everything that the data port does at the same time, in one process without an interpreter: for ThreadSanitizer.
// `data_port_traffic [seconds]`
//
// Server threads, callers with and without TLS, callers that give up, strangers of each kind, calls that are
// cancelled, renewed certificates, sweeps, and a stop while calls are under way. Exits with 1 where a reply was
// wrong or nothing went on.

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "../../gigl_loader/csrc/data_client.h"
#include "../../gigl_loader/csrc/data_server.h"
#include "../../gigl_loader/csrc/stop.h"
#include "../fuzz/tls_peer.h"

namespace gigl {
namespace {

constexpr double kSoonS = 5.0;
constexpr auto kRound = std::chrono::milliseconds(1500);
constexpr size_t kMaxBody = 300 << 10;  // more than a piece of a transfer
constexpr std::string_view kGood = "authorization: good";
constexpr int kServerThreads = 3, kCallers = 3;

struct Counts {
  std::atomic<uint64_t> replies = 0, refusals = 0, failed = 0, wrong = 0, strangers = 0, renewals = 0, cancelled = 0;
};

class Dice {
 public:
  explicit Dice(unsigned seed) : engine_(seed) {}
  unsigned Below(unsigned bound) { return static_cast<unsigned>(engine_() % bound); }

 private:
  std::mt19937 engine_;
};

std::vector<std::byte> SomeBytes(Dice& dice, size_t size) {
  std::vector<std::byte> bytes(size);
  const unsigned first = dice.Below(256);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(first + i * 7);
  return bytes;
}

// The calls that server threads work on, for whoever cancels them.
class UnderWay {
 public:
  void Add(DataCall* call) {
    const std::lock_guard lock(mutex_);
    calls_.insert(call);
  }
  void Remove(DataCall* call) {
    const std::lock_guard lock(mutex_);
    calls_.erase(call);
  }
  bool CancelOne() {
    const std::lock_guard lock(mutex_);
    if (calls_.empty()) return false;
    (*calls_.begin())->Cancel();
    return true;
  }

 private:
  std::mutex mutex_;
  std::set<DataCall*> calls_;
};

// One server and its traffic, until it is stopped.
class Round {
 public:
  Round(Counts& counts, const KeyPair (&pairs)[2], bool encrypted, unsigned seed)
      : counts_(counts), seed_(seed), encrypted_(encrypted) {
    if (encrypted) {
      for (const KeyPair& pair : pairs) servers_.push_back(TlsContext::Server(pair.certificate, pair.key, ""));
      clients_ = TlsContext::Client(pairs[0].certificate + pairs[1].certificate, "", "");
    }
    DataLimits limits;
    limits.strangers = 6;
    limits.stranger_s = 0.4;
    limits.idle_s = 0.2;
    limits.linger_s = 0.1;
    limits.per_address = 24;
    for (const char* other : {"another", "one more"}) {
      tokens_.push_back(std::make_shared<AcceptedTokens>(std::vector<std::string>{"good", other}, "no"));
    }
    server_ = std::make_unique<DataServer>("127.0.0.1", 0, encrypted ? servers_[0] : nullptr, limits, tokens_[0]);
  }

  void Run() {
    for (int i = 0; i < kServerThreads; ++i) Start([this](Dice& dice) { Serve(dice); });
    for (int i = 0; i < kCallers; ++i) Start([this](Dice& dice) { Repeat([&] { Call(dice); }); });
    Start([this](Dice& dice) { Repeat([&] { GiveUp(dice); }); });
    for (int i = 0; i < 2; ++i) Start([this](Dice& dice) { Repeat([&] { Stranger(dice); }); });
    Start([this](Dice&) { Repeat([&] { Watch(); }); });
    std::this_thread::sleep_for(kRound);
    server_->Stop();
    server_->CutAll();
    ending_ = true;
    for (auto& thread : threads_) thread.join();
    server_->Sweep();
    if (server_->num_connections() != 0 || server_->num_networks() != 0) ++counts_.wrong;
  }

 private:
  template <typename Work>
  void Start(Work work) {
    const unsigned seed = seed_ * 100 + static_cast<unsigned>(threads_.size());
    threads_.emplace_back([work, seed] {
      Dice dice(seed);
      work(dice);
    });
  }

  template <typename Work>
  void Repeat(Work work) {
    while (!ending_) {
      try {
        work();
      } catch (const StreamError&) {
        ++counts_.failed;
      }
    }
  }

  void Serve(Dice& dice) {
    while (!ending_) {
      const auto call = server_->Next(0.05);
      if (!call) continue;
      under_way_.Add(call.get());
      try {
        Answer(*call, dice);
      } catch (const StreamError&) {
      }
      under_way_.Remove(call.get());
    }
  }

  void Answer(DataCall& call, Dice& dice) {
    const Patience patience = Patience::Of(kSoonS, 1.0);
    if (call.header() != kGood) ++counts_.wrong;
    if (call.head().body_bytes > kMaxBody) return call.Refuse({}, false, patience);
    const auto kept = std::make_shared<std::vector<std::byte>>(call.head().body_bytes);
    if (!call.ReadBody(*kept, patience)) ++counts_.wrong;
    const unsigned kind = dice.Below(40);
    if (kind == 0) return;  // the connection ends with the call
    const std::span<const std::byte> body(*kept);
    if (kind == 1) return call.Refuse(body, true, patience);
    const auto half = body.first(body.size() / 2);
    const std::vector pieces{half, body.subspan(half.size())};
    if (kind >= 20) return call.Reply(pieces, nullptr, 7, patience);
    call.Wait();
    if (dice.Below(2) == 0) std::this_thread::sleep_for(std::chrono::microseconds(dice.Below(3000)));
    if (kind == 2) return;  // it ends while it waits
    if (kind == 3) return call.PostRefusal("a record", kSoonS);
    call.Post(pieces, kept, 7, kSoonS);
  }

  void Call(Dice& dice) {
    DataClient client("127.0.0.1", server_->port(), clients_);
    client.Connect(kSoonS);
    const unsigned calls = 1 + dice.Below(8);
    for (unsigned i = 0; i < calls && client.reusable() && !client.IsStale(); ++i) Echo(client, dice);
  }

  void Echo(DataClient& client, Dice& dice) {
    const auto body = SomeBytes(dice, dice.Below(4) == 0 ? dice.Below(kMaxBody) : dice.Below(2000));
    const ReplyHead head = client.Call(kGood, body, kSoonS);
    std::vector<std::byte> received(head.payload_bytes);
    client.Read(received);
    if (!client.Finish()) ++counts_.wrong;
    if (head.status == kReplyOk && received != body) ++counts_.wrong;
    ++(head.status == kReplyOk ? counts_.replies : counts_.refusals);
  }

  // A caller whose other thread cancels it, or stops its work, at some moment.
  void GiveUp(Dice& dice) {
    DataClient client("127.0.0.1", server_->port(), clients_);
    StopFlag flag;
    const bool stops = dice.Below(2) == 0;
    const auto delay = std::chrono::microseconds(dice.Below(20'000));
    std::thread other([&client, &flag, stops, delay] {
      std::this_thread::sleep_for(delay);
      if (stops) flag.Stop("enough");
      else client.Cancel();
    });
    flag.Enter();
    try {
      client.Connect(kSoonS);
      while (flag.reason().empty()) Echo(client, dice);
    } catch (const StreamError&) {
    } catch (const Stopped&) {
    }
    StopFlag::Leave();
    other.join();
  }

  // Sweeps, renewals, metrics and cancelled calls, each some hundred times a second.
  void Watch() {
    server_->Sweep();
    server_->TakeGone();
    server_->num_connections();
    server_->num_strangers();
    server_->num_networks();
    server_->Accept(tokens_[++counts_.renewals % tokens_.size()]);
    if (encrypted_) server_->Renew(servers_[counts_.renewals % servers_.size()]);
    if (counts_.renewals % 8 == 0 && under_way_.CancelOne()) ++counts_.cancelled;
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
  }

  void Stranger(Dice& dice) {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(server_->port());
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket.get(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) return;
    ++counts_.strangers;
    const unsigned kind = dice.Below(6);
    if (kind == 0) Send(socket.get(), SomeBytes(dice, 1 + dice.Below(300)));  // noise
    if (kind == 1) Send(socket.get(), Head(dice.Below(2) == 0, 1 << 20));     // a body that does not come
    if (kind == 2) Send(socket.get(), std::span<const std::byte>(Head(false, 0)).first(20));  // half a head
    if (kind == 3) UpdateKeys(socket.get(), dice.Below(80));
    if (kind == 4) Reset(socket.get());
    pollfd polled{socket.get(), POLLIN, 0};
    poll(&polled, 1, static_cast<int>(dice.Below(30)));
  }

  static std::vector<std::byte> Head(bool good, uint64_t body_bytes) {
    const std::string text(good ? kGood : "authorization: evil");
    RequestHead head{};
    std::memcpy(head.magic, kDataMagic, sizeof head.magic);
    head.version = kDataVersion;
    head.header_bytes = static_cast<uint32_t>(text.size());
    head.body_bytes = body_bytes;
    head.crc = HeadCrc(head, std::as_bytes(std::span(text)));
    std::vector<std::byte> bytes(kHeadBytes + text.size());
    std::memcpy(bytes.data(), &head, kHeadBytes);
    std::memcpy(bytes.data() + kHeadBytes, text.data(), text.size());
    return bytes;
  }

  static bool Send(int fd, std::span<const std::byte> bytes) {
    return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }

  static void Reset(int fd) {
    const linger at_once{1, 0};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }

  void UpdateKeys(int fd, unsigned count) {
    if (!encrypted_) return;
    fcntl(fd, F_SETFL, O_NONBLOCK);
    TlsPeer peer(fd, TlsVersion::k13, nullptr);
    for (int i = 0; i < 100 && !peer.Handshake(); ++i) {
      pollfd polled{fd, POLLIN, 0};
      if (ending_ || poll(&polled, 1, 20) < 0 || i == 99) return;
    }
    const std::byte update[] = {std::byte{24}, std::byte{0}, std::byte{0}, std::byte{1}, std::byte{1}};
    for (unsigned i = 0; i < count && Send(fd, peer.Seal(22, update)); ++i) peer.NextKeys();
  }

  Counts& counts_;
  const unsigned seed_;
  const bool encrypted_;
  std::vector<std::shared_ptr<const TlsContext>> servers_;
  std::shared_ptr<const TlsContext> clients_;
  std::vector<std::shared_ptr<const AcceptedTokens>> tokens_;
  std::unique_ptr<DataServer> server_;
  UnderWay under_way_;
  std::atomic<bool> ending_ = false;
  std::vector<std::thread> threads_;
};

int Main(double seconds) {
  Counts counts;
  const KeyPair pairs[2] = {NewKeyPair(), NewKeyPair()};
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  unsigned rounds = 0;
  do Round(counts, pairs, rounds % 2 == 0, rounds).Run();
  while (++rounds < 2 || std::chrono::steady_clock::now() < until);
  std::printf("%u rounds: %lu replies, %lu refusals, %lu failed, %lu strangers, %lu cancelled, %lu renewals, %lu wrong\n",
              rounds, counts.replies.load(), counts.refusals.load(), counts.failed.load(), counts.strangers.load(),
              counts.cancelled.load(), counts.renewals.load(), counts.wrong.load());
  const bool goes_on = counts.replies > rounds && counts.strangers > rounds;
  return goes_on && counts.wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace gigl

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);  // of OpenSSL, in strangers that the server ends during their handshake
  try {
    return gigl::Main(argc > 1 ? std::atof(argv[1]) : 10.0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
