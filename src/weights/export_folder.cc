#include "weights/export_folder.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/file.h"
#include "io/safetensors.h"
#include "io/tokenizer.h"

namespace octet {
namespace {

const char* name_in_config(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "float32";
    case DType::kBF16: return "bfloat16";
    case DType::kF16: return "float16";
    default: fail(ErrorCode::kInvalidArgument, "a folder of {} (want f32, bf16 or f16)", dtype_name(dtype));
  }
}

// Whether the rows of q and k must change places: llama2.c files rotate neighbours (2i, 2i + 1), Llama folders halves
// (i, i + d/2).
bool pairs_differ(const ModelConfig& config, const std::string& param) {
  return config.architecture == "llama" && config.rope.interleaved &&
         (param.ends_with("attn.q.weight") || param.ends_with("attn.k.weight"));
}

std::vector<float> in_halves(const std::vector<float>& from, int64_t rows, int64_t cols, int64_t head) {
  std::vector<float> to(from.size());
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r % head, source = r - at + (at < head / 2 ? 2 * at : 2 * (at - head / 2) + 1);
    std::copy_n(from.begin() + static_cast<ptrdiff_t>(source * cols), cols,
                to.begin() + static_cast<ptrdiff_t>(r * cols));
  }
  return to;
}

// float16 ends at 65504.
void check_range(const std::string& name, DType dtype, const std::vector<std::byte>& bytes) {
  if (dtype != DType::kF16) return;
  for (size_t i = 0; i < bytes.size() / 2; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, sizeof bits);
    check((bits & 0x7c00u) != 0x7c00u, ErrorCode::kInvalidArgument,
          "{}: element {} is too large for f16: use --dtype bf16 or f32", name, i);
  }
}

// A folder and its parents; those that were not there before go again unless keep() was called.
class NewFolder {
 public:
  explicit NewFolder(const std::string& path) {
    for (std::string at = path; !path_exists(at) && parent_folder(at) != at; at = parent_folder(at)) made_ = at;
    make_folders(path);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code ignored;
    if (!made_.empty()) std::filesystem::remove_all(made_, ignored);
  }
  void keep() { made_.clear(); }

 private:
  std::string made_;  // the topmost that was not there
};

}  // namespace

void write_model_folder(const std::string& folder, const std::vector<NamedType>& types, const MakeTensor& make,
                        const std::string& config, const std::string& tokenizer_folder,
                        const std::function<void(int64_t, int64_t)>& on_progress) {
  NewFolder made(folder);
  SafetensorsFolderWriter writer(folder, types, {{"format", "pt"}});
  const auto total = static_cast<int64_t>(writer.tensors().size());
  int64_t done = 0;
  for (const NamedType& entry : writer.tensors()) {
    writer.write(entry.name, make(entry.name));
    if (on_progress) on_progress(++done, total);
  }
  writer.finish();
  write_file(folder + "/config.json", config);
  if (!tokenizer_folder.empty()) copy_tokenizer_files(tokenizer_folder, folder);
  made.keep();
}

std::vector<float> tensor_values(const WeightSource& source, const CheckpointTensor& tensor,
                                 const ParamShapes& shapes) {
  if (tensor.parts > 1)
    return read_part(source.view(tensor.params[0], shapes.at(tensor.params[0])), tensor.part, tensor.parts);
  return join_params(tensor, tensor_shape(tensor, shapes).elements(), [&](size_t i) {
    const std::string& param = tensor.params[i];
    const Shape& shape = shapes.at(param);
    std::vector<float> part = source.read(param, shape);
    if (!pairs_differ(source.config(), param)) return part;
    return in_halves(part, shape[0], shape[1], source.config().head_size());
  });
}

void export_folder(const WeightSource& source, const std::string& tokenizer_folder, const std::string& folder,
                   DType dtype, const std::function<void(int64_t, int64_t)>& on_progress) {
  const std::string config = to_hugging_face_config(source.config(), source.special(), name_in_config(dtype));
  const ParamShapes shapes = param_shapes(source.config());
  std::map<std::string, CheckpointTensor> tensors;
  std::vector<NamedType> types;
  for (const CheckpointTensor& tensor : checkpoint_tensors(source.config())) {
    types.push_back({tensor.name, {dtype, tensor_shape(tensor, shapes)}});
    tensors.emplace(tensor.name, tensor);
  }
  const auto make = [&](const std::string& name) {
    const CheckpointTensor& tensor = tensors.at(name);
    auto bytes = stored_bytes(tensor, tensor_shape(tensor, shapes), tensor_values(source, tensor, shapes), dtype);
    check_range(name, dtype, bytes);
    return bytes;
  };
  write_model_folder(folder, types, make, config, tokenizer_folder, on_progress);
}

}  // namespace octet
