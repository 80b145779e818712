// For tests: a certificate that signs itself.
#pragma once

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <memory>
#include <string>

#include "serve/http.h"

namespace octet::serve {

template <auto kFree>
struct Free {
  void operator()(auto* object) const { kFree(object); }
};
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;

// Writes a certificate of localhost that signs itself, and its key: FOLDER/NAME.crt and .key.
inline HttpOptions write_certificate(const std::string& folder, const std::string& name, long serial) {
  const Key key(EVP_EC_gen("P-256"));
  const std::unique_ptr<X509, Free<X509_free>> cert(X509_new());
  ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), serial);
  X509_gmtime_adj(X509_getm_notBefore(cert.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(cert.get()), 3600);
  X509_set_pubkey(cert.get(), key.get());
  const std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>> names(
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "DNS:localhost"));
  X509_add_ext(cert.get(), names.get(), -1);
  X509_sign(cert.get(), key.get(), EVP_sha256());
  const std::string path = folder + "/" + name;
  std::unique_ptr<FILE, Free<std::fclose>> file(std::fopen((path + ".crt").c_str(), "w"));
  PEM_write_X509(file.get(), cert.get());
  file.reset(std::fopen((path + ".key").c_str(), "w"));
  PEM_write_PrivateKey(file.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  return {.port = 0, .certificate = path + ".crt", .private_key = path + ".key"};
}

}  // namespace octet::serve
