#include "data_client.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include "resolver.h"

namespace gigl {
namespace {

constexpr size_t kReceivedBytes = 64 << 10;

}  // namespace

DataClient::DataClient(std::string host, uint16_t port, std::shared_ptr<const TlsContext> tls,
                       const std::string& name)
    : host_(std::move(host)), port_(port), tls_(std::move(tls)), name_(name.empty() ? host_ : name) {}

DataClient::~DataClient() = default;

void DataClient::Connect(double timeout_s) {
  const Patience patience = Patience::Of(timeout_s, timeout_s);
  const auto is_cancelled = [this] {
    const MutexLock lock(mutex_);
    return cancelled_;
  };
  const std::vector<SocketAddress> addresses = Resolve(host_, port_, patience.deadline, is_cancelled);
  std::string reason = "no address";
  for (size_t i = 0; i < addresses.size(); ++i) {
    // An address that swallows everything leaves time for the next one.
    const auto left = patience.deadline - Clock::now();
    const Patience share{Clock::now() + left / static_cast<int>(addresses.size() - i), left};
    Descriptor made(socket(addresses[i].address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!made) {
      reason = std::generic_category().message(errno);
      continue;
    }
    const int started = connect(made.get(), reinterpret_cast<const sockaddr*>(&addresses[i].address), addresses[i].size);
    const int failure = started == 0 ? 0 : errno;
    {
      const MutexLock lock(mutex_);
      stream_.reset();
      stream_ = std::make_unique<DataStream>(std::move(made), tls_, name_);
      if (cancelled_) stream_->Cancel();
    }
    if (failure != 0 && failure != EINPROGRESS) {
      reason = std::generic_category().message(failure);
      continue;
    }
    try {
      stream_->AwaitConnected(share);
      stream_->Handshake(share);
      reusable_ = true;
      return;
    } catch (const StreamCancelled&) {
      throw;
    } catch (const StreamTimedOut&) {
      reason = "timed out";
      if (i + 1 == addresses.size()) throw StreamTimedOut("connecting timed out");
    } catch (const StreamError& error) {
      reason = error.what();
    }
  }
  throw StreamError("cannot connect: " + reason);
}

ReplyHead DataClient::Call(std::string_view header, std::span<const std::byte> body, double timeout_s,
                           uint16_t flags) {
  if (!reusable_) throw StreamError("not connected");
  reusable_ = closes_ = false;
  patience_ = Patience::Of(timeout_s, timeout_s);
  RequestHead head{};
  std::memcpy(head.magic, kDataMagic, sizeof head.magic);
  head.version = kDataVersion;
  head.flags = flags | (stream_->encrypted() ? kChecksumUnread : 0);
  head.header_bytes = static_cast<uint32_t>(header.size());
  head.body_crc = stream_->encrypted() ? 0 : Crc32c(body);
  head.body_bytes = body.size();
  head.crc = HeadCrc(head, {reinterpret_cast<const std::byte*>(header.data()), header.size()});
  iovec pieces[] = {{&head, kHeadBytes},
                    {const_cast<char*>(header.data()), header.size()},
                    {const_cast<std::byte*>(body.data()), body.size()}};
  const bool sent = stream_->WriteUnlessAnswered(pieces, patience_);

  if (!received_) received_ = std::make_unique_for_overwrite<std::byte[]>(kReceivedBytes);
  begin_ = end_ = 0;
  while (end_ < kHeadBytes) {
    size_t got;
    stream_->ReadSome({received_.get() + end_, kReceivedBytes - end_}, got, patience_);
    end_ += got;
  }
  const auto reply = ReadHead<ReplyHead>({received_.get(), kHeadBytes});
  if (!reply) throw StreamError("the reply is not one of a data port");
  if (reply->crc != HeadCrc(*reply)) throw StreamError("the head of the reply was damaged");
  if (reply->version != kDataVersion && reply->status == kReplyOk) {
    throw StreamError("the reply has version " + std::to_string(reply->version));
  }
  if (reply->status > kReplyRefused || (reply->status == kReplyRefused && reply->payload_bytes > kMaxRefusal)) {
    throw StreamError("the head of the reply breaks a rule");
  }
  begin_ = kHeadBytes;
  left_ = reply->payload_bytes;
  patience_ = patience_.ForPayload(left_);
  crc_ = 0;
  closes_ = !sent || (reply->flags & kReplyCloses) != 0;
  return *reply;
}

void DataClient::ExpectWithin(double seconds) {
  patience_.stall = std::min(patience_.stall, Patience::Of(seconds, seconds).stall);
}

void DataClient::Receive(std::span<std::byte> out, uint32_t* crc) {
  const auto known = std::span(received_.get() + begin_, end_ - begin_).first(std::min(out.size(), end_ - begin_));
  std::ranges::copy(known, out.begin());
  if (crc != nullptr) *crc = Crc32c(known, *crc);
  begin_ += known.size();
  stream_->Read(out.subspan(known.size()), patience_, crc);
}

void DataClient::Read(std::span<std::byte> out) {
  if (out.size() > left_) throw std::length_error("more bytes than the reply has left");
  Receive(out, stream_->encrypted() ? nullptr : &crc_);
  left_ -= out.size();
}

bool DataClient::Finish() {
  if (left_ != 0) throw std::length_error("the reply was not read to its end");
  uint32_t trailer;
  Receive(std::as_writable_bytes(std::span(&trailer, 1)), nullptr);
  if (begin_ != end_) throw StreamError("bytes follow the reply");
  reusable_ = !closes_;
  return stream_->encrypted() || trailer == crc_;
}

void DataClient::Cancel() {
  const MutexLock lock(mutex_);
  cancelled_ = true;
  if (stream_) stream_->Cancel();
}

bool DataClient::IsStale() {
  if (!reusable_) return true;
  pollfd polled{stream_->fd(), POLLIN, 0};
  return poll(&polled, 1, 0) != 0;  // nothing may come between two calls, but the end
}

}  // namespace gigl
