// One layer's linears in integer codes: scales folded into what makes their inputs, weights rounded, errors told.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compress/calibration_run.h"
#include "compress/gptq.h"
#include "weights/weights.h"

namespace octet {

enum class CompressMethod : uint8_t { kRoundToNearest, kSmoothQuant, kAwq, kGptq };
CompressMethod parse_compress_method(const std::string& name);  // rtn, smoothquant, awq, gptq
const char* compress_method_name(CompressMethod method);

struct CompressRule {
  CompressMethod method = CompressMethod::kAwq;
  CodeRule codes = {};
  double alpha = 0.5;                          // SmoothQuant's
  double damping = 0.01;                       // GPTQ's
  ColumnOrder order = ColumnOrder::kAsStored;  // GPTQ's
  double bound = 0;                            // linears whose outputs change by more than this part stay; 0: none
  std::vector<std::string> keep = {};          // linears that stay: whole parts of their names, "layers.0", "mlp.down"
};

// Another model's weights, some of them changed.
class EditedWeights : public WeightSource {
 public:
  explicit EditedWeights(const WeightSource& source);
  ParamView view(const std::string& param, const Shape& shape) const override;
  // The values, to be changed: [N, K] or [N].
  std::vector<float>& edit(const std::string& param);
  const Shape& shape(const std::string& param) const { return shapes_.at(param); }

 private:
  const WeightSource& source_;
  ParamShapes shapes_;
  std::map<std::string, std::vector<float>> edits_;
};

struct LinearReport {
  std::string gemm;
  double error = 0;    // |x W'^T - x W^T| / |x W^T| over tokens of the calibration text, W' the rounded W
  bool kept = false;   // not in codes
  int64_t unseen = 0;  // experts that no token of the text reached: rounded to nearest
};

struct CompressedLayer {
  std::map<std::string, std::vector<GroupCodes>> codes;  // by gemm: one, or one of each expert; none of those kept
  std::vector<LinearReport> report;
};
// `weights` ends with scales folded in and the values of codes in place of the weights in codes. Linears that read one
// x are kept together.
CompressedLayer compress_layer(std::vector<ObservedInput> inputs, EditedWeights& weights, const CompressRule& rule);

// Whether a word of `keep` is the name of this linear or a whole part of it at its beginning or end.
bool names_linear(const std::string& word, const std::string& gemm);

}  // namespace octet
