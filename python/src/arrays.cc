#include "arrays.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "convert.h"

namespace octet::python {
namespace {

using Code = nb::dlpack::dtype_code;

struct ArrayType {
  DType dtype;
  Code code;
  uint8_t bits;
  const char* extension;  // its name in ml_dtypes; null: a type of numpy's
};
constexpr ArrayType kTypes[] = {
    {DType::kF64, Code::Float, 64, nullptr},
    {DType::kF32, Code::Float, 32, nullptr},
    {DType::kF16, Code::Float, 16, nullptr},
    {DType::kBF16, Code::Bfloat, 16, "bfloat16"},
    {DType::kE4M3, Code::Float8_E4M3FN, 8, "float8_e4m3fn"},
    {DType::kE5M2, Code::Float8_E5M2, 8, "float8_e5m2"},
    {DType::kI64, Code::Int, 64, nullptr},
    {DType::kI32, Code::Int, 32, nullptr},
    {DType::kI8, Code::Int, 8, nullptr},
    {DType::kU8, Code::UInt, 8, nullptr},
};

const ArrayType& type_of(DType dtype) {
  const auto* found = std::ranges::find(kTypes, dtype, &ArrayType::dtype);
  check(found != std::end(kTypes), ErrorCode::kUnsupported, "arrays have no type {}", dtype_name(dtype));
  return *found;
}

nb::object imported(const char* name) {
  PyObject* module = PyImport_ImportModule(name);
  if (module == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_ImportError) == 0) throw nb::python_error();
    PyErr_Clear();
    return nb::none();
  }
  return nb::steal(module);
}

std::string dtype_text(nb::handle array) {
  if (!nb::hasattr(array, "dtype")) return nb::cast<std::string>(array.type().attr("__name__"));
  const nb::object dtype = array.attr("dtype");
  return nb::cast<std::string>(nb::str(nb::handle(dtype)));
}

// An array of one of ml_dtypes' types as one of codes; none for others.
const ArrayType* extension_of(nb::handle array) {
  if (!nb::hasattr(array, "dtype") || !nb::hasattr(array, "view")) return nullptr;
  const std::string name = dtype_text(array);
  const auto* found = std::ranges::find_if(
      kTypes, [&](const ArrayType& type) { return type.extension != nullptr && name == type.extension; });
  return found != std::end(kTypes) ? found : nullptr;
}

nb::ndarray<nb::ro> import(nb::handle array, const std::string& what) {
  nb::ndarray<nb::ro> made;
  if (!nb::try_cast(array, made, /*convert=*/false) || !made.is_valid()) {
    PyErr_Clear();
    fail(ErrorCode::kInvalidArgument,
         "{} is of type {} (want an array with DLPack or a buffer in memory, of a type that Octet has: f64, f32, f16, "
         "bf16, FP8, i64, i32, i8, u8)",
         what, dtype_text(array));
  }
  return made;
}

nb::object wrap(const std::byte* data, const TensorType& type, nb::handle owner, bool writable, bool as_codes) {
  const ArrayType& known = type_of(type.dtype);
  const std::vector<size_t> shape(type.shape.dims.begin(), type.shape.dims.end());
  const nb::dlpack::dtype dtype = {static_cast<uint8_t>(as_codes ? Code::UInt : known.code), known.bits, 1};
  void* address = const_cast<std::byte*>(data);
  const bool numpy = !imported("numpy").is_none();
  const auto made = [&]<typename... Kind>(Kind...) -> nb::object {
    return nb::cast(
        nb::ndarray<Kind...>(address, shape.size(), shape.data(), owner, nullptr, dtype, nb::device::cpu::value),
        nb::rv_policy::reference);
  };
  if (numpy) return writable ? made(nb::numpy()) : made(nb::numpy(), nb::ro());
  return writable ? made(nb::array_api()) : made(nb::array_api(), nb::ro());
}

}  // namespace

ArrayIn::ArrayIn(nb::handle array, const std::string& what) {
  if (const ArrayType* extension = extension_of(array)) {
    kept_ = array.attr("view")(extension->bits == 16 ? "uint16" : "uint8");
    array_ = import(kept_, what), dtype_ = extension->dtype;
  } else {
    array_ = import(array, what);
    const nb::dlpack::dtype type = array_.dtype();
    const auto* found = std::ranges::find_if(kTypes, [&](const ArrayType& one) {
      return static_cast<uint8_t>(one.code) == type.code && one.bits == type.bits && type.lanes == 1;
    });
    check(found != std::end(kTypes), ErrorCode::kInvalidArgument,
          "{} is an array of {}, which Octet has not (want f64, f32, f16, bf16, FP8, i64, i32, i8 or u8)", what,
          dtype_text(array));
    dtype_ = found->dtype;
  }
  check(array_.device_type() == nb::device::cpu::value || array_.device_type() == nb::device::cuda_host::value,
        ErrorCode::kInvalidArgument, "{} lies on another device (DLPack's device type {}): copy it to the host first",
        what, array_.device_type());
  for (size_t i = 0; i < array_.ndim(); ++i) shape_.dims.push_back(static_cast<int64_t>(array_.shape(i)));
  if (shape_.dims.empty()) shape_.dims = {1};
}

void ArrayIn::read(std::span<std::byte> to) const {
  const auto width = static_cast<size_t>(dtype_bytes(dtype_));
  const auto* from = static_cast<const std::byte*>(array_.data());
  const int64_t count = shape_.elements();
  int64_t dense = 1;
  bool rows = true;  // in row-major order without gaps
  for (size_t i = array_.ndim(); i-- > 0;) {
    rows = rows && (array_.shape(i) == 1 || array_.stride(i) == dense);
    dense *= static_cast<int64_t>(array_.shape(i));
  }
  if (count == 0) return;
  if (rows) {
    std::memcpy(to.data(), from, static_cast<size_t>(count) * width);
    return;
  }
  std::vector<size_t> at(array_.ndim(), 0);
  int64_t offset = 0;
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(to.data() + static_cast<size_t>(i) * width, from + offset * static_cast<int64_t>(width), width);
    for (size_t d = array_.ndim(); d-- > 0;) {
      offset += array_.stride(d);
      if (++at[d] < array_.shape(d)) break;
      offset -= array_.stride(d) * static_cast<int64_t>(at[d]);
      at[d] = 0;
    }
  }
}

nb::object array_over(const std::byte* data, const TensorType& type, nb::handle owner, bool writable) {
  const ArrayType& known = type_of(type.dtype);
  if (known.extension == nullptr) return wrap(data, type, owner, writable, false);
  const nb::object types = imported("ml_dtypes");
  check(!types.is_none(), ErrorCode::kUnsupported,
        "arrays of {} without a copy want the package ml_dtypes, which is not installed", dtype_name(type.dtype));
  return wrap(data, type, owner, writable, true).attr("view")(types.attr(known.extension));
}

nb::object array_of(std::vector<std::byte> bytes, const TensorType& type) {
  TensorType kept = type;
  if (type_of(type.dtype).extension != nullptr && imported("ml_dtypes").is_none()) {
    kept.dtype = DType::kF32;
    std::vector<std::byte> wide(static_cast<size_t>(kept.bytes()));
    convert(type.dtype, bytes.data(), DType::kF32, wide.data(), type.shape.elements());
    bytes = std::move(wide);
  }
  auto memory = std::make_unique<std::vector<std::byte>>(std::move(bytes));
  const std::byte* data = memory->data();
  const nb::capsule owner(memory.release(),
                          [](void* held) noexcept { delete static_cast<std::vector<std::byte>*>(held); });
  return array_over(data, kept, owner, /*writable=*/true);
}

}  // namespace octet::python
