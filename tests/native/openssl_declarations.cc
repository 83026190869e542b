// Compiles where the declarations of csrc/openssl.h are those of OpenSSL's own headers, version 3.
// Compiled with -I of the folder of openssl.h.

#include "openssl.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>

#include <type_traits>

#define CHECK_FUNCTION(result, name, parameters) \
  static_assert(std::is_same_v<decltype(gigl::OpenSsl::name), decltype(&::name)>, #name);
GIGL_OPENSSL_FUNCTIONS(CHECK_FUNCTION)

#define CHECK_CONSTANT(name, value, original) static_assert(gigl::name == static_cast<long>(original), #original);
GIGL_OPENSSL_CONSTANTS(CHECK_CONSTANT)
