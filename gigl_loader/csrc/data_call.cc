#include "data_call.h"

#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "crc32c.h"

namespace gigl {
namespace {

constexpr size_t kSendBytes = 256 << 10;  // summed while they are in the second-level cache, then sent

}  // namespace

DataCall::DataCall(std::shared_ptr<DataConnections> connections, HeldConnection connection)
    : connections_(std::move(connections)),
      connection_(connection),
      subject_(std::move(connection)),
      head_(*ReadHead<RequestHead>(subject_->head)),
      header_(reinterpret_cast<const char*>(subject_->head.data()) + kHeadBytes, head_.header_bytes),
      early_(subject_->head.begin() + kHeadBytes + head_.header_bytes, subject_->head.end()),
      body_read_(head_.body_bytes == 0) {}

DataCall::~DataCall() {
  if (connection_) connections_->Drop(connection_, "");
}

bool DataCall::Gone() const {
#ifdef POLLRDHUP
  pollfd connection{subject_->stream.fd(), POLLRDHUP, 0};
#else
  pollfd connection{subject_->stream.fd(), 0, 0};
#endif
  return poll(&connection, 1, 0) > 0 && connection.revents != 0;
}

bool DataCall::Cancel() {
  const MutexLock lock(releasing_);
  if (!connection_) return false;
  connection_->stream.Cancel();
  return true;
}

HeldConnection DataCall::Release() {
  const MutexLock lock(releasing_);
  return std::exchange(connection_, nullptr);
}

bool DataCall::ReadBody(std::span<std::byte> out, const Patience& patience) {
  if (!connection_ || body_taken_ || out.size() != head_.body_bytes) throw std::logic_error("the body is read once");
  body_taken_ = true;
  const bool checked = !connection_->stream.encrypted();
  std::ranges::copy(early_, out.begin());
  uint32_t crc = checked ? Crc32c(early_) : 0;
  const size_t known = early_.size();
  std::vector<std::byte>().swap(early_);
  connection_->stream.Read(out.subspan(known), patience, checked ? &crc : nullptr);
  body_read_ = true;
  return !checked || crc == head_.body_crc;
}

void DataCall::Reply(const std::vector<std::span<const std::byte>>& pieces, const uint32_t* crc, uint64_t membership,
                     const Patience& patience) {
  Send(pieces, kReplyOk, crc, membership, !body_read_, patience);
}

void DataCall::Refuse(std::span<const std::byte> record, bool closes, const Patience& patience) {
  Send({record.first(std::min<size_t>(record.size(), kMaxRefusal))}, kReplyRefused, nullptr, 0, closes || !body_read_,
       patience);
}

ReplyHead DataCall::NewHead(const std::vector<std::span<const std::byte>>& pieces, uint8_t status, uint64_t membership,
                            bool closes) const {
  ReplyHead head{};
  std::memcpy(head.magic, kDataMagic, sizeof head.magic);
  head.version = kDataVersion;
  head.status = status;
  head.flags = closes ? kReplyCloses : 0;
  for (const auto& piece : pieces) head.payload_bytes += piece.size();
  head.membership = membership;
  head.crc = HeadCrc(head);
  return head;
}

void DataCall::Wait() {
  if (!connection_ || !body_read_) throw std::logic_error("a call waits once its body was read");
  connections_->Wait(connection_);
}

void DataCall::Post(const std::vector<std::span<const std::byte>>& pieces, std::shared_ptr<const void> memory,
                    uint64_t membership, double seconds) {
  PostPieces(pieces, std::move(memory), kReplyOk, membership, seconds);
}

bool DataCall::CutReply(std::string_view reason) { return connections_->Cut(subject_, posted_, reason); }

void DataCall::PostRefusal(std::string record, double seconds) {
  const auto kept = std::make_shared<const std::string>(std::move(record));
  const auto bytes = std::as_bytes(std::span(*kept));
  PostPieces({bytes.first(std::min<size_t>(bytes.size(), kMaxRefusal))}, kept, kReplyRefused, 0, seconds);
}

void DataCall::PostPieces(const std::vector<std::span<const std::byte>>& pieces, std::shared_ptr<const void> memory,
                          uint8_t status, uint64_t membership, double seconds) {
  if (!connection_) throw std::logic_error("the call has its reply");
  auto reply = std::make_unique<PostedReply>();
  reply->head = NewHead(pieces, status, membership, false);
  reply->memory = std::move(memory);
  reply->sums = (head_.flags & kChecksumUnread) == 0;
  reply->pieces = pieces;
  posted_ = reply.get();
  const HeldConnection released = Release();
  if (connections_->Resume(released)) connections_->Post(released, std::move(reply), seconds);
}

void DataCall::Send(const std::vector<std::span<const std::byte>>& pieces, uint8_t status, const uint32_t* crc,
                    uint64_t membership, bool closes, const Patience& patience) {
  if (!connection_) throw std::logic_error("the call has its reply");
  ReplyHead head = NewHead(pieces, status, membership, closes);
  try {
    SendPieces(head, pieces, crc, patience.ForPayload(head.payload_bytes));
  } catch (...) {
    // A part of it may have gone: whatever came next would be read as the rest.
    connections_->Drop(Release(), "");
    throw;
  }
  connections_->EndCall(Release(), closes);
}

// Without a checksum to compute, all goes out at once, as the socket takes it.
void DataCall::SendPieces(ReplyHead& head, const std::vector<std::span<const std::byte>>& pieces, const uint32_t* crc,
                          const Patience& patience) {
  const bool sums = (head_.flags & kChecksumUnread) == 0;
  uint32_t trailer = sums && crc != nullptr ? *crc : 0;
  std::vector<iovec> ready{{&head, kHeadBytes}};
  size_t unsent = 0;
  for (auto piece : pieces) {
    while (!piece.empty()) {
      const auto part = sums && crc == nullptr ? piece.first(std::min(piece.size(), kSendBytes)) : piece;
      piece = piece.subspan(part.size());
      if (sums && crc == nullptr) trailer = Crc32c(part, trailer);
      ready.push_back({const_cast<std::byte*>(part.data()), part.size()});
      unsent += part.size();
      if (sums && crc == nullptr && unsent >= kSendBytes) {
        connection_->stream.Write(ready, patience);
        ready.clear();
        unsent = 0;
      }
    }
  }
  ready.push_back({&trailer, kTrailerBytes});
  connection_->stream.Write(ready, patience);
}

}  // namespace gigl
