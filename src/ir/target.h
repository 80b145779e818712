// What passes may know of a device: plain data, filled by an executor, or read from a file, or one of the tables here.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "ir/fusion.h"
#include "ir/target_limits.h"

namespace octet {

// Seconds of a training step that `linears` linears y [tokens, out] = x [tokens, in] W^T of one x take in a precision,
// measured: their products, forward and backward, and whatever else the step does for that precision. precision: "bf16"
// "fp8-tensor" "fp8-block". Linears of several widths have the mean of them as `out`.
struct LinearTiming {
  std::string precision;
  int64_t tokens = 0, out = 0, in = 0, linears = 1;
  double seconds = 0;
};
std::string timing_text(const LinearTiming& timing);  // the line of a target file

// Products of x by weights of integer codes that have kernels, and how the codes lie for them.
struct IntegerProduct {
  DType x = DType::kI8, codes = DType::kI8;
  std::string order = {};      // kernels/common/code_order.h; "": row after row
  int64_t rows = 1, cols = 1;  // the order is taken where N and K are multiples of these
};

// What nodes reach in the midst of a training step, at its clocks; 0: not known. `octet plan` tells the time by them,
// while passes choose by the peaks of Target.
struct StepRates {
  double bf16 = 0, fp8 = 0, fp8_block = 0;               // FLOP/s of large products
  double attention_forward = 0, attention_backward = 0;  // FLOP/s of wide heads and long sequences, causal
  // Of attention with dropout, by words and by bytes, heads of 128; 0: as without.
  double dropout_forward = 0, dropout_backward = 0, byte_dropout_forward = 0, byte_dropout_backward = 0;
  double bytes_per_second = 0;  // of nodes that are bound by memory
  double kernel_seconds = 0;    // between the end of a kernel and the work of the next
  double beside = 0;            // of the time that a collective passes beside kernels, what these lose
  double step_seconds = 0;      // of a step's start and end, beside its kernels
  bool known() const {
    return bf16 > 0 && fp8 > 0 && fp8_block > 0 && attention_forward > 0 && attention_backward > 0 &&
           bytes_per_second > 0;
  }
};

enum class Device : uint8_t { kCpu, kCuda };

const char* device_name(Device device);  // "cpu", "cuda"

// How programs use a device: the same of all of a kind. The defaults are a CPU's.
struct DeviceTraits {
  int64_t block_size = 16;          // tokens of a block of the KV cache
  int64_t steps_ahead = 0;          // that are enqueued while one runs; 0: a step has ended when run() returns
  bool captures_graphs = false;     // a graph's first runs are slow: programs run each before the first request
  bool overlaps_transfers = false;  // between pipeline stages, beside kernels
  bool library_masks = false;       // attention may draw the dropout masks of a library
  bool shares_memory = true;        // ranks of one machine have one memory
  double memory_fraction = 0.5;     // the most of the free memory that serving takes
  int64_t memory_reserve = 0;       // bytes left for drivers and libraries: graphs, workspaces
  // An encoder's steps: the least size in tokens, how many between a power of two and the next, and what all are
  // multiples of.
  int64_t least_bucket = 16, buckets_per_doubling = 4, bucket_multiple = 1;
};
inline constexpr DeviceTraits kGpuTraits{.block_size = 64,
                                         .steps_ahead = 1,
                                         .captures_graphs = true,
                                         .overlaps_transfers = true,
                                         .library_masks = true,
                                         .shares_memory = false,
                                         .memory_fraction = 1,
                                         .memory_reserve = int64_t{1} << 28,
                                         .least_bucket = 64,
                                         .buckets_per_doubling = 2,
                                         .bucket_multiple = 16};

struct Target {
  std::string name = "cpu";
  Device device = Device::kCpu;                   // whose executor runs the plan
  std::array<uint32_t, kProducers> fusions = {};  // by Producer: the FusionParts its kernels take; 0: none fuses
  bool fp8_tn_only = false;       // FP8 products need both operands K-contiguous: transposed codes are stored
  bool prefer_recompute = false;  // made again faster than stored and read: recompute=auto means light
  int64_t vocab_multiple = 1;     // the vocabulary dim of tables is padded physically to a multiple of this
  int64_t fp8_alignment = 1;      // GEMM dims must be multiples of this for FP8, else that GEMM stays bf16
  int64_t buffer_alignment = 64;  // bytes
  int64_t workspace_bytes = 0;    // one scratch buffer shared by all kernels, part of the arena
  int64_t memory_bytes = 0;       // 0 = unknown
  double bytes_per_second = 0;    // measured copy, read + write
  double link_bytes_per_second = 0, link_latency = 0;  // of a collective: what a rank sends, seconds of a call
  int64_t node_devices = 0;                            // that share a machine and its links; 0: all of them
  double node_link_bytes_per_second = 0, node_link_latency = 0;  // of a collective that leaves a machine, a device's
  double f32_flops = 0, bf16_flops = 0, fp8_flops = 0;           // measured GEMM rates, FLOP/s
  double watts = 0;                                              // of a device under load; 0 = unknown
  StepRates step = {};
  TargetLimits limits = {};
  DeviceTraits traits = {};
  std::vector<IntegerProduct> integer_products = {};  // recipes of integer weights run where theirs are here
  std::vector<LinearTiming> timings = {};

  const IntegerProduct* find_product(DType x, DType codes) const;  // null: no kernels

  bool fuses(Producer producer) const { return fusions[static_cast<size_t>(producer)] != 0; }
  bool fuses(Producer producer, FusionPart part) const {
    return (fusions[static_cast<size_t>(producer)] & static_cast<uint32_t>(part)) != 0;
  }
  void allow(Producer producer, std::initializer_list<FusionPart> parts);
};

Target interpreter_target();  // no fusions
// Those of targets/*.txt, by name: devices by their published figures, the source beside each line.
std::vector<std::string> published_targets();
Target published_target(const std::string& name);
Target h200_target();  // fusions of the CUDA kernels, figures measured on one H200: plans made on a laptop

// Allows what "norm residual amax" says, a producer and its parts; throws kInvalidArgument with the nearest names.
void allow_fusions(Target& target, const std::string& rule);

// YAML-like "key: value" text, as written by to_text; traits that are not given are those of the device.
Target read_target(const std::string& path);
Target parse_target(const std::string& text, const std::string& where);
std::string to_text(const Target& target);

}  // namespace octet
