// Heads of requests and replies on the data port: fixed 32 bytes, little-endian, each with a checksum.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "crc32c.h"

namespace gigl {

static_assert(std::endian::native == std::endian::little, "heads are copied as they lie in memory");

constexpr char kDataMagic[4] = {'G', 'I', 'G', 'L'};
constexpr uint16_t kDataVersion = 4;
constexpr size_t kHeadBytes = 32;
constexpr size_t kMaxHeaderText = 4096 - kHeadBytes;
constexpr uint64_t kMaxRefusal = 16 << 10;
constexpr size_t kTrailerBytes = 4;

// The caller ignores the checksum of the reply, because it uses TLS.
constexpr uint16_t kChecksumUnread = 1;
// The body asks for a batch: a gigl.v1.SampleRequest.
constexpr uint16_t kSample = 2;

// A request: this head, `header_bytes` of text, `body_bytes` of body.
struct RequestHead {
  char magic[4];
  uint16_t version;
  uint16_t flags;
  uint32_t header_bytes;
  uint32_t body_crc;  // CRC-32C of the body
  uint64_t body_bytes;
  uint32_t reserved;  // 0
  uint32_t crc;       // CRC-32C of the 28 bytes before it, then of the header text
};
static_assert(sizeof(RequestHead) == kHeadBytes);

constexpr uint8_t kReplyOk = 0;
constexpr uint8_t kReplyRefused = 1;
// The server closes the connection after this reply.
constexpr uint8_t kReplyCloses = 1;

// A reply: this head, `payload_bytes` of payload (of a refusal: its record), 4 bytes of checksum.
struct ReplyHead {
  char magic[4];
  uint16_t version;
  uint8_t status;
  uint8_t flags;
  uint64_t payload_bytes;
  uint64_t membership;  // version of the membership that the server knows; 0: unknown
  uint32_t reserved;    // 0
  uint32_t crc;         // CRC-32C of the 28 bytes before it
};
static_assert(sizeof(ReplyHead) == kHeadBytes);

template <typename Head>
uint32_t HeadCrc(const Head& head, std::span<const std::byte> text = {}) {
  return Crc32c(text, Crc32c({reinterpret_cast<const std::byte*>(&head), offsetof(Head, crc)}));
}

// Returns the head that `bytes` begin with (at least kHeadBytes), unless the magic is another.
template <typename Head>
std::optional<Head> ReadHead(std::span<const std::byte> bytes) {
  Head head;
  std::memcpy(&head, bytes.data(), kHeadBytes);
  if (std::memcmp(head.magic, kDataMagic, sizeof kDataMagic) != 0) return std::nullopt;
  return head;
}

}  // namespace gigl
