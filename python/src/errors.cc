#include "errors.h"

#include <nanobind/nanobind.h>

#include <new>

#include "base/error.h"
#include "infer/request.h"
#include "serve/fields.h"

namespace octet::python {
namespace {

namespace nb = nanobind;

const char* code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return "invalid_argument";
    case ErrorCode::kNotFound: return "not_found";
    case ErrorCode::kIo: return "io";
    case ErrorCode::kCorrupt: return "corrupt";
    case ErrorCode::kOutOfMemory: return "out_of_memory";
    case ErrorCode::kUnsupported: return "unsupported";
    default: return "internal";
  }
}

const char* code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalid: return "invalid_argument";
    case ErrorKind::kTooLong: return "context_length_exceeded";
    case ErrorKind::kQueueFull: return "queue_full";
    case ErrorKind::kLate: return "timeout";
    case ErrorKind::kDevice: return "device";
    default: return "internal";
  }
}

std::string code_of(const serve::ApiError& error) {
  if (error.code() == "context_length_exceeded") return error.code();
  return error.status() == 503 ? "queue_full" : error.status() < 500 ? "invalid_argument" : "internal";
}

void set_error(const std::string& code, const char* message) {
  try {
    const nb::object type = nb::module_::import_("octet.errors").attr("class_of")(code.c_str());
    const nb::object text =
        nb::steal(PyUnicode_DecodeUTF8(message, static_cast<Py_ssize_t>(std::strlen(message)), "replace"));
    const nb::object error = type(text);
    error.attr("code") = code.c_str();
    PyErr_SetObject(type.ptr(), error.ptr());
  } catch (nb::python_error& error) {
    error.restore();
  }
}

}  // namespace

void throw_event(const GenerationEvent& event, const std::string& where) {
  throw CodedError(code_of(event.error_kind), where + event.error);
}

void translate_errors() {
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const CodedError& error) {
      set_error(error.code(), error.what());
    } catch (const serve::ApiError& error) {
      set_error(code_of(error), error.what());
    } catch (const RequestError& error) {
      set_error(code_of(error.kind()), error.what());
    } catch (const Error& error) {
      set_error(code_of(error.code()), error.what());
    } catch (const std::bad_alloc&) {
      set_error("out_of_memory", "out of memory");
    }
  });
}

}  // namespace octet::python
