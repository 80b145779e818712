// Safetensors files made of an executor's states. Files are shared out among the ranks of a mesh: the owner of a file
// receives its tensors from the ranks that hold them, piece by piece, and writes it. The files are the same whatever
// the mesh.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/executor.h"
#include "io/manifest.h"
#include "io/safetensors.h"
#include "model/hugging_face.h"
#include "model/model.h"

namespace octet {

// What a tensor of a file is made of: logical states, one after the other, or as `order` says; or of one state the
// `slice`-th of `slices` equal runs of rows.
struct SavedTensor {
  std::vector<LogicalState> parts;
  int64_t slice = 0, slices = 1;
  std::optional<CheckpointTensor> order;
};

// Tensors dealt to files as deal_tensors(stem) does.
struct FileSet {
  std::string stem;
  TextMap metadata;
  std::vector<SafetensorsFile> files;
  std::map<std::string, SavedTensor> tensors;  // by name
};

// The masters as a Hugging Face folder has them, of `dtype`; the states of some roles under their own names, as they
// are or of `dtype`, but for those of frozen parameters.
FileSet weight_files(const Program& program, const ModelConfig& config, DType dtype, int64_t max_bytes);
FileSet state_files(const Program& program, bool (*wanted)(StateRole role), const std::string& stem, int64_t max_bytes,
                    std::optional<DType> dtype = {});

// The owner of each file: the largest first, each to the rank that has the fewest bytes so far.
std::vector<int32_t> share_out(const std::vector<int64_t>& file_bytes, int32_t ranks);

// All ranks of a mesh call it together, with a folder that all see. When it returns all files are on the disk; the
// list, the same on every rank, is in no order. An Error of any rank is thrown on all; files may then be left in the
// folder, but none is open. A rank has at most eight open at once. Beside its states it holds pieces of at most 64 MiB
// together, and of a tensor whose parts do not lie one after the other (GPT-2's [in, out]) the values and the stored
// bytes.
std::vector<ManifestFile> write_tensor_files(Executor& executor, const std::string& folder,
                                             const std::vector<FileSet>& sets);

}  // namespace octet
