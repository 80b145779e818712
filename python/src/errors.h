// Exceptions of C++ as those of octet.errors.
#pragma once

#include <exception>
#include <string>

#include "octet/engine.h"

namespace octet::python {

// An error by the code that octet.errors knows, which selects its class.
class CodedError : public std::exception {
 public:
  CodedError(std::string code, std::string message) : code_(std::move(code)), message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }
  const std::string& code() const { return code_; }

 private:
  std::string code_, message_;
};

// Throws what ended a text; `where` stands before its words.
[[noreturn]] void throw_event(const GenerationEvent& event, const std::string& where);
void translate_errors();

}  // namespace octet::python
