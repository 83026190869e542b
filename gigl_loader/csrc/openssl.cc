#include "openssl.h"

#include <dlfcn.h>

#include <string>
#include <string_view>

#include "tls.h"

namespace gigl {
namespace {

void* Find(void* library, const char* name) {
  void* found = dlsym(library, name);
  if (found == nullptr && std::string_view(name) == "SSL_get1_peer_certificate") {
    found = dlsym(library, "SSL_get_peer_certificate");  // its name in 1.1.1
  }
  if (found != nullptr) return found;
  throw TlsUnusable(std::string("the OpenSSL of this machine has no ") + name +
                    ": install OpenSSL 3 (libssl3), or 1.1.1");
}

OpenSsl Load() {
  void* library = nullptr;
  for (const char* name : {"libssl.so.3", "libssl.so.1.1"}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    throw TlsUnusable("TLS needs OpenSSL, which this machine does not have: install libssl3 (or openssl-libs)");
  }
  OpenSsl api{};
#define GIGL_FIND(result, name, parameters) api.name = reinterpret_cast<decltype(api.name)>(Find(library, #name));
  GIGL_OPENSSL_FUNCTIONS(GIGL_FIND)
#undef GIGL_FIND
  return api;
}

}  // namespace

const OpenSsl& OpenSsl::Library() {
  static const OpenSsl api = Load();
  return api;
}

}  // namespace gigl
