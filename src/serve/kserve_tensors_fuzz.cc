// libFuzzer: any bytes, the first two of them the length of the JSON, are tensors or throw ApiError; tensors that were
// read are written in bytes and read again alike.
#include <cstdlib>

#include "serve/fields.h"
#include "serve/kserve_tensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using octet::serve::read_tensors;
  using octet::serve::Tensor;
  if (size < 2) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 2, size - 2);
  std::vector<Tensor> tensors;
  try {
    const auto [json, bytes] = octet::serve::split_body(body, std::to_string(data[0] + 256 * data[1]));
    if (json.contains("inputs")) tensors = read_tensors(json.at("inputs"), bytes);
  } catch (const octet::serve::ApiError&) {
  }
  for (const Tensor& tensor : tensors) {
    nlohmann::ordered_json list = nlohmann::ordered_json::array();
    std::string bytes;
    write_tensor(tensor, /*binary=*/true, list, bytes);
    const Tensor again = read_tensors(nlohmann::ordered_json::parse(list.dump()), bytes).at(0);
    std::string rewritten;
    write_tensor(again, /*binary=*/true, list, rewritten);
    if (again.shape != tensor.shape || rewritten != bytes) std::abort();
  }
  return 0;
}
