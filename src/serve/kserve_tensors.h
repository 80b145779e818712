// Tensors of the KServe v2 protocol: as JSON, and by Triton's extension as bytes that stand behind the JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace octet::serve {

struct Tensor {
  std::string name, datatype;  // "BYTES", "INT32", "FP32", "BOOL", ...
  std::vector<int64_t> shape;
  nlohmann::ordered_json values;  // a flat array of strings, numbers or booleans, row-major
};

// The body of a request: its JSON object, and the tensors' bytes behind it.
struct TensorBody {
  nlohmann::ordered_json json;
  std::string_view bytes;  // of the body that was split
};
// `json_bytes`: the field Inference-Header-Content-Length; empty: all of the body is JSON. Throws ApiError.
TensorBody split_body(std::string_view body, std::string_view json_bytes);

// The tensors of "inputs", a million elements at most in all. Throws ApiError, which names the tensor, for what has not
// the form, a datatype that is none, and values or bytes that do not fit datatype and shape.
std::vector<Tensor> read_tensors(const nlohmann::ordered_json& inputs, std::string_view bytes);

// Adds a tensor to the list "outputs"; `binary`: its values to `bytes` and not to the list.
void write_tensor(const Tensor& tensor, bool binary, nlohmann::ordered_json& list, std::string& bytes);

}  // namespace octet::serve
