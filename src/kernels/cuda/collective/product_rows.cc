// Products in parts of their rows: the own part is multiplied while the other ranks' rows are gathered, or while the
// rows that are theirs, multiplied first, travel to them. The parts are the same in turn: so are the bits.
#include "kernels/cuda/collective/product_rows.h"

#include <algorithm>
#include <memory>

#include "ir/plan.h"
#include "kernels/cuda/collective/ranks.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/families.h"
#include "kernels/cuda/fusion_body.h"
#include "kernels/cuda/matmul/product.h"

namespace octet::cuda {
namespace {

// The product on rows [first, first + rows), alone in a graph.
struct Part {
  int64_t first;
  Graph graph{"part"};
  NodeId id = NodeId::kNone;
  BoundKernel kernel = {};

  const Node& node() const { return graph.node(id); }
};

// Whether the product's input has a row for each of its rows.
bool by_rows(const Graph& body, const Node& product, size_t input) {
  return input == 0 || (product.inputs[input] == product.operand("c") && body.shape(product.inputs[input]).rank() == 2);
}

class ProductRows {
 public:
  ProductRows(DeviceContext& context, const Fusion& fusion)
      : body_(fusion.node.body), exchange_(*exchange_of(fusion.node)), product_(*fused_product(*body_)) {
    const FusionBody& body = fusion.body;
    group_ = &context.ranks().group(parse_axes(exchange_.attr<std::string>("over")));
    gathers_ = exchange_.op == Op::kAllGather, beside_ = exchange_.attr<bool>("async");
    for (size_t i = 0; i < product_.inputs.size(); ++i) inputs_.push_back(body.input(product_, i));
    const Node& whole = gathers_ ? exchange_ : product_;
    whole_result_ = body.result(&whole), exchanged_ = body.input(exchange_, 0);
    product_result_ = body.result(&product_), exchange_result_ = body.result(&exchange_);
    const int64_t rows = product_.results[0].shape.rows(), part = rows / group_->size(), begin = group_->own() * part;
    parts_.push_back(part_of(begin, part));
    if (begin > 0) parts_.push_back(part_of(0, begin));
    if (begin + part < rows) parts_.push_back(part_of(begin + part, rows - begin - part));
    if (whole_result_ < 0) scratch_at_ = aligned(whole.results[0].bytes());
    if (!gathers_ && beside_) scratch_bytes_ = aligned(group_->scratch_bytes(exchange_.results[0].bytes()));
    for (Part& part : parts_) {
      part.kernel = select_kernel(context, part.graph, part.node()).kernel;
      kernel_bytes_ = std::max(kernel_bytes_, part.kernel.workspace);
    }
  }

  int64_t workspace() const { return scratch_at_ + scratch_bytes_ + kernel_bytes_; }

  void run(const KernelArgs& args) const {
    std::byte* whole = whole_result_ < 0 ? args.workspace.data() : at<std::byte>(args.out, whole_result_);
    std::byte* product = gathers_ ? at<std::byte>(args.out, product_result_) : whole;
    const auto* exchanged = at<const std::byte>(args.in, exchanged_);
    const auto own = [&] { multiply(parts_[0], gathers_ ? exchanged : nullptr, whole, product, args); };
    const auto others = [&] {
      for (size_t i = 1; i < parts_.size(); ++i) multiply(parts_[i], nullptr, whole, product, args);
    };
    const auto call = [&] {
      const TensorType& result = exchange_.results[0];
      if (gathers_)
        group_->all_gather(exchanged, whole, result.bytes() / group_->size(), args.stream);
      else
        group_->reduce_scatter(whole, at(args.out, exchange_result_), result.shape.elements(), result.dtype,
                               args.stream);
    };
    if (!gathers_) others();
    if (beside_) {
      group_->coalesce_overlapped(
          own, call, args.workspace.subspan(static_cast<size_t>(scratch_at_), static_cast<size_t>(scratch_bytes_)));
    } else {
      own();
      group_->coalesce(call);
    }
    if (gathers_) others();
  }

 private:
  Part part_of(int64_t first, int64_t rows) const {
    Part part{.first = first};
    Node node = product_;
    node.layouts.clear();
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.inputs[i].exists()) continue;
      TensorType type = body_->type(product_.inputs[i]);
      if (by_rows(*body_, product_, i)) type.shape = {rows, type.shape.cols()};
      node.inputs[i] = {part.graph.add({.op = Op::kInput, .results = {type}, .name = fmt::format("{}", i)}), 0};
    }
    node.results[0].shape = {rows, node.results[0].shape.cols()};
    part.id = part.graph.add(std::move(node));
    return part;
  }

  // `rows`: the part's of the gathered operand, where they are not in the whole one.
  void multiply(const Part& part, const std::byte* rows, std::byte* whole, std::byte* product,
                const KernelArgs& args) const {
    const Node& node = part.node();
    const auto from = [&](std::byte* data, const TensorType& type) {
      return data + part.first * (type.bytes() / type.shape.rows());
    };
    std::vector<Tensor> in;
    for (size_t i = 0; i < inputs_.size(); ++i) {
      Tensor& tensor = in.emplace_back();
      if (!node.inputs[i].exists()) continue;
      tensor.type = &part.graph.type(node.inputs[i]);
      std::byte* data = inputs_[i] < 0 ? whole : at<std::byte>(args.in, inputs_[i]);
      tensor.data = by_rows(*body_, product_, i) ? from(data, *tensor.type) : data;
      if (i == 0 && rows != nullptr) tensor.data = const_cast<std::byte*>(rows);
    }
    const Tensor out{from(product, node.results[0]), node.results.data()};
    part.kernel(
        {in, {&out, 1}, args.workspace.subspan(static_cast<size_t>(scratch_at_ + scratch_bytes_)), args.stream});
  }

  std::shared_ptr<const Graph> body_;
  const Node &exchange_, &product_;
  RankGroup* group_ = nullptr;
  bool gathers_ = false, beside_ = false;
  std::vector<int> inputs_;  // of the product among the fusion's; -1: absent, or gathered
  // Among the fusion's operands: the value of all rows (-1: in the workspace), and what is exchanged of it.
  int whole_result_ = -1, exchanged_ = -1, product_result_ = -1, exchange_result_ = -1;
  std::vector<Part> parts_;                                        // the own one first
  int64_t scratch_at_ = 0, scratch_bytes_ = 0, kernel_bytes_ = 0;  // in the workspace
};

bool takes_product_rows(const FusionBody& body, const Node& node) {
  const Node* product = fused_product(*node.body);
  const Node* exchange = exchange_of(node);
  if (product == nullptr || exchange == nullptr || exchange->inputs.size() != 1) return false;
  for (const Node& member : node.body->nodes())
    if (member.op != Op::kInput && &member != product && &member != exchange) return false;
  const bool gathers = exchange->op == Op::kAllGather && body.reads(*product, 0, *exchange),
             scatters = exchange->op == Op::kReduceScatter && body.reads(*exchange, 0, *product);
  if (!gathers && !scatters) return false;
  const Layout& parts = gathers ? node.body->layout(exchange->inputs[0]) : exchange->layouts.at(0);
  return parts.outer(0) == 1 && exchange->attr<int64_t>("axis") == 0 && !product->attr<bool>("trans_a") &&
         body.result(gathers ? *product : *exchange, 0) >= 0 &&
         (product->op == Op::kMatmul || node.body->shape(product->inputs[1]).elements() == 1);
}

}  // namespace

BoundKernel bind_product_rows(DeviceContext& context, const Fusion& fusion) {
  if (!takes_product_rows(fusion.body, fusion.node)) return {};
  if (!context.has_device()) return without_device();
  const auto rows = std::make_shared<ProductRows>(context, fusion);
  return {[rows](const KernelArgs& args) { rows->run(args); }, rows->workspace()};
}

}  // namespace octet::cuda
