#include "tls_peer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

// Functions of OpenSSL 3, with prototypes of our own: its headers are not needed to build the tests.
extern "C" {
const void* TLS_client_method();
const void* TLS_server_method();
void* SSL_CTX_new(const void*);
void SSL_CTX_free(void*);
long SSL_CTX_ctrl(void*, int, long, void*);
int SSL_CTX_set_cipher_list(void*, const char*);
int SSL_CTX_set_ciphersuites(void*, const char*);
int SSL_CTX_set_num_tickets(void*, size_t);
int SSL_CTX_use_certificate(void*, void*);
int SSL_CTX_use_PrivateKey(void*, void*);
void SSL_CTX_set_keylog_callback(void*, void (*)(const void*, const char*));
void* SSL_new(void*);
void SSL_free(void*);
int SSL_set_fd(void*, int);
int SSL_set_ex_data(void*, int, void*);
void* SSL_get_ex_data(const void*, int);
void SSL_set_accept_state(void*);
void SSL_set_connect_state(void*);
int SSL_do_handshake(void*);
int SSL_read(void*, void*, int);
void* SSL_get_wbio(const void*);
uint64_t BIO_number_written(void*);
size_t SSL_get_client_random(const void*, unsigned char*, size_t);
size_t SSL_get_server_random(const void*, unsigned char*, size_t);
void ERR_clear_error();
const void* EVP_sha256();
const void* EVP_aes_128_gcm();
unsigned char* HMAC(const void*, const void*, int, const unsigned char*, size_t, unsigned char*, unsigned*);
void* EVP_CIPHER_CTX_new();
void EVP_CIPHER_CTX_free(void*);
int EVP_EncryptInit_ex(void*, const void*, void*, const unsigned char*, const unsigned char*);
int EVP_EncryptUpdate(void*, unsigned char*, int*, const unsigned char*, int);
int EVP_EncryptFinal_ex(void*, unsigned char*, int*);
int EVP_CIPHER_CTX_ctrl(void*, int, int, void*);
void* EVP_PKEY_Q_keygen(void*, const char*, const char*, ...);
void EVP_PKEY_free(void*);
void* X509_new();
void X509_free(void*);
int X509_set_version(void*, long);
void* X509_get_serialNumber(void*);
int ASN1_INTEGER_set(void*, long);
void* X509_getm_notBefore(const void*);
void* X509_getm_notAfter(const void*);
void* X509_gmtime_adj(void*, long);
void* X509_get_subject_name(const void*);
int X509_set_issuer_name(void*, void*);
int X509_NAME_add_entry_by_txt(void*, const char*, int, const unsigned char*, int, int, int);
int X509_set_pubkey(void*, void*);
void* X509V3_EXT_conf_nid(void*, void*, int, const char*);
int X509_add_ext(void*, void*, int);
void X509_EXTENSION_free(void*);
int X509_sign(void*, void*, const void*);
const void* BIO_s_mem();
void* BIO_new(const void*);
void* BIO_new_mem_buf(const void*, int);
int BIO_free(void*);
long BIO_ctrl(void*, int, long, void*);
int PEM_write_bio_X509(void*, const void*);
int PEM_write_bio_PrivateKey(void*, const void*, const void*, const unsigned char*, int, void*, void*);
void* PEM_read_bio_X509(void*, void*, void*, void*);
void* PEM_read_bio_PrivateKey(void*, void*, void*, void*);
}

namespace gigl {
namespace {

constexpr int kCtrlMinVersion = 123, kCtrlMaxVersion = 124, kBioInfo = 3, kGcmGetTag = 0x10, kAltName = 85;
constexpr int kAscii = 0x1001, kIvBytes = 12, kKeyBytes = 16, kTagBytes = 16, kSecretBytes = 32;
constexpr long kValidS = 86400;

void Must(bool works, const char* what) {
  if (works) return;
  std::fprintf(stderr, "OpenSSL of the test failed: %s\n", what);
  std::abort();
}

std::string TextOf(void* bio) {
  char* begin = nullptr;
  const long size = BIO_ctrl(bio, kBioInfo, 0, &begin);
  std::string text(begin, static_cast<size_t>(size));
  BIO_free(bio);
  return text;
}

std::vector<uint8_t> Hmac(std::span<const uint8_t> key, std::span<const uint8_t> data) {
  std::vector<uint8_t> out(kSecretBytes);
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data.data(), data.size(), out.data(), &size);
  return out;
}

// HKDF-Expand-Label of RFC 8446 (7.1) without context, of at most one hash.
std::vector<uint8_t> ExpandLabel(std::span<const uint8_t> secret, std::string_view name, size_t size) {
  const std::string label = "tls13 " + std::string(name);
  std::vector<uint8_t> info{0, static_cast<uint8_t>(size), static_cast<uint8_t>(label.size())};
  info.insert(info.end(), label.begin(), label.end());
  info.insert(info.end(), {0, 1});
  auto out = Hmac(secret, info);
  out.resize(size);
  return out;
}

// P_SHA256 of RFC 5246 (5).
std::vector<uint8_t> Expand12(std::span<const uint8_t> secret, std::span<const uint8_t> seed, size_t size) {
  std::vector<uint8_t> out, chain(seed.begin(), seed.end());
  while (out.size() < size) {
    chain = Hmac(secret, chain);
    std::vector<uint8_t> input = chain;
    input.insert(input.end(), seed.begin(), seed.end());
    const auto block = Hmac(secret, input);
    out.insert(out.end(), block.begin(), block.end());
  }
  out.resize(size);
  return out;
}

void* NewCertificate(void* key) {
  void* const made = X509_new();
  X509_set_version(made, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(made), 1);
  X509_gmtime_adj(X509_getm_notBefore(made), -kValidS);
  X509_gmtime_adj(X509_getm_notAfter(made), kValidS);
  void* const name = X509_get_subject_name(made);
  X509_NAME_add_entry_by_txt(name, "CN", kAscii, reinterpret_cast<const unsigned char*>("a test"), -1, -1, 0);
  X509_set_issuer_name(made, name);
  X509_set_pubkey(made, key);
  void* const names = X509V3_EXT_conf_nid(nullptr, nullptr, kAltName, "IP:127.0.0.1,DNS:localhost");
  X509_add_ext(made, names, -1);
  X509_EXTENSION_free(names);
  Must(X509_sign(made, key, EVP_sha256()) > 0, "signing a certificate");
  return made;
}

void UsePair(void* context, const KeyPair& pair) {
  void* bio = BIO_new_mem_buf(pair.certificate.data(), static_cast<int>(pair.certificate.size()));
  void* const certificate = PEM_read_bio_X509(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  bio = BIO_new_mem_buf(pair.key.data(), static_cast<int>(pair.key.size()));
  void* const key = PEM_read_bio_PrivateKey(bio, nullptr, nullptr, nullptr);
  BIO_free(bio);
  Must(SSL_CTX_use_certificate(context, certificate) == 1 && SSL_CTX_use_PrivateKey(context, key) == 1, "a pair");
  X509_free(certificate);
  EVP_PKEY_free(key);
}

std::vector<uint8_t> BytesOfHex(std::string_view text) {
  std::vector<uint8_t> out;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    out.push_back(static_cast<uint8_t>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  }
  return out;
}

}  // namespace

KeyPair NewKeyPair() {
  void* const key = EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256");
  Must(key != nullptr, "a key");
  void* const certificate = NewCertificate(key);
  void* const certificate_text = BIO_new(BIO_s_mem());
  void* const key_text = BIO_new(BIO_s_mem());
  Must(PEM_write_bio_X509(certificate_text, certificate) == 1, "PEM of a certificate");
  Must(PEM_write_bio_PrivateKey(key_text, key, nullptr, nullptr, 0, nullptr, nullptr) == 1, "PEM of a key");
  X509_free(certificate);
  EVP_PKEY_free(key);
  return {TextOf(certificate_text), TextOf(key_text)};
}

TlsPeer::TlsPeer(int fd, TlsVersion version, const KeyPair* pair) : version_(version), is_server_(pair != nullptr) {
  context_ = SSL_CTX_new(is_server_ ? TLS_server_method() : TLS_client_method());
  const long number = version == TlsVersion::k13 ? 0x0304 : 0x0303;
  SSL_CTX_ctrl(context_, kCtrlMinVersion, number, nullptr);
  SSL_CTX_ctrl(context_, kCtrlMaxVersion, number, nullptr);
  SSL_CTX_set_cipher_list(context_, "ECDHE-ECDSA-AES128-GCM-SHA256");
  SSL_CTX_set_ciphersuites(context_, "TLS_AES_128_GCM_SHA256");
  SSL_CTX_set_num_tickets(context_, 0);
  SSL_CTX_set_keylog_callback(context_, &TlsPeer::Learn);
  if (is_server_) UsePair(context_, *pair);
  session_ = SSL_new(context_);
  Must(session_ != nullptr && SSL_set_fd(session_, fd) == 1, "a session");
  SSL_set_ex_data(session_, 0, this);
  if (is_server_) SSL_set_accept_state(session_);
  else SSL_set_connect_state(session_);
}

TlsPeer::~TlsPeer() {
  SSL_free(session_);
  SSL_CTX_free(context_);
}

// A line of the key log: label, random of the client, secret.
void TlsPeer::Learn(const void* session, const char* line) {
  auto& peer = *static_cast<TlsPeer*>(SSL_get_ex_data(session, 0));
  const std::string_view text(line);
  const auto label = text.substr(0, text.find(' '));
  const char* const mine = peer.version_ == TlsVersion::k12 ? "CLIENT_RANDOM"
                           : peer.is_server_                ? "SERVER_TRAFFIC_SECRET_0"
                                                            : "CLIENT_TRAFFIC_SECRET_0";
  if (label == mine) peer.secret_ = BytesOfHex(text.substr(text.rfind(' ') + 1));
}

bool TlsPeer::Handshake() {
  ERR_clear_error();
  if (SSL_do_handshake(session_) != 1) return false;
  if (key_.empty()) {
    if (version_ == TlsVersion::k13) DeriveFromSecret();
    else DeriveFromMaster();
  }
  return true;
}

uint64_t TlsPeer::written() const { return BIO_number_written(SSL_get_wbio(session_)); }

void TlsPeer::DeriveFromSecret() {
  key_ = ExpandLabel(secret_, "key", kKeyBytes);
  salt_ = ExpandLabel(secret_, "iv", kIvBytes);
  sequence_ = 0;
}

void TlsPeer::DeriveFromMaster() {
  std::vector<uint8_t> seed{'k', 'e', 'y', ' ', 'e', 'x', 'p', 'a', 'n', 's', 'i', 'o', 'n'};
  const size_t begin = seed.size();
  seed.resize(begin + 2 * kSecretBytes);
  SSL_get_server_random(session_, seed.data() + begin, kSecretBytes);
  SSL_get_client_random(session_, seed.data() + begin + kSecretBytes, kSecretBytes);
  const auto block = Expand12(secret_, seed, 2 * (kKeyBytes + 4));
  const auto key = block.begin() + (is_server_ ? kKeyBytes : 0);
  const auto salt = block.begin() + 2 * kKeyBytes + (is_server_ ? 4 : 0);
  key_.assign(key, key + kKeyBytes);
  salt_.assign(salt, salt + 4);
  sequence_ = 1;  // 0 was this side's Finished
}

void TlsPeer::NextKeys() {
  if (version_ == TlsVersion::k12) return;
  secret_ = ExpandLabel(secret_, "traffic upd", kSecretBytes);
  DeriveFromSecret();
}

std::vector<std::byte> TlsPeer::Seal(uint8_t type, std::span<const std::byte> text, size_t padding) {
  const bool is13 = version_ == TlsVersion::k13;
  std::vector<uint8_t> plain(reinterpret_cast<const uint8_t*>(text.data()),
                             reinterpret_cast<const uint8_t*>(text.data()) + text.size());
  if (is13) {
    plain.push_back(type);
    plain.resize(plain.size() + padding);
  }
  uint8_t number[8];
  for (int i = 0; i < 8; ++i) number[i] = static_cast<uint8_t>(sequence_ >> (56 - 8 * i));
  std::vector<uint8_t> nonce = salt_;
  if (is13) {
    for (int i = 0; i < 8; ++i) nonce[4 + i] ^= number[i];
  } else {
    nonce.insert(nonce.end(), number, number + 8);
  }
  ++sequence_;

  const size_t explicit_bytes = is13 ? 0 : sizeof number;
  const size_t sealed = explicit_bytes + plain.size() + kTagBytes;
  std::vector<uint8_t> record{is13 ? uint8_t{23} : type, 3, 3, static_cast<uint8_t>(sealed >> 8),
                              static_cast<uint8_t>(sealed)};
  std::vector<uint8_t> extra = record;
  if (!is13) {
    extra.assign(number, number + 8);
    extra.insert(extra.end(),
                 {type, 3, 3, static_cast<uint8_t>(plain.size() >> 8), static_cast<uint8_t>(plain.size())});
    record.insert(record.end(), number, number + 8);
  }
  const size_t begin = record.size();
  record.resize(begin + plain.size() + kTagBytes);
  void* const cipher = EVP_CIPHER_CTX_new();
  int size = 0;
  EVP_EncryptInit_ex(cipher, EVP_aes_128_gcm(), nullptr, key_.data(), nonce.data());
  EVP_EncryptUpdate(cipher, nullptr, &size, extra.data(), static_cast<int>(extra.size()));
  if (!plain.empty()) {
    EVP_EncryptUpdate(cipher, record.data() + begin, &size, plain.data(), static_cast<int>(plain.size()));
  }
  EVP_EncryptFinal_ex(cipher, record.data() + begin + plain.size(), &size);
  EVP_CIPHER_CTX_ctrl(cipher, kGcmGetTag, kTagBytes, record.data() + begin + plain.size());
  EVP_CIPHER_CTX_free(cipher);
  const auto* bytes = reinterpret_cast<const std::byte*>(record.data());
  return {bytes, bytes + record.size()};
}

size_t TlsPeer::Read(std::span<std::byte> out) {
  ERR_clear_error();
  const int got = SSL_read(session_, out.data(), static_cast<int>(out.size()));
  return got > 0 ? static_cast<size_t>(got) : 0;
}

}  // namespace gigl
