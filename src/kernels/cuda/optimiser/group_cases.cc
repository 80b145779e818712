#include "kernels/cuda/optimiser/group_cases.h"

#include "ir/facts.h"

namespace octet::cuda {

cpu::Case update_group_case(Op op, const std::vector<Shape>& shapes, double finite) {
  const DType f = DType::kF32;
  const auto moments = static_cast<size_t>(op_facts(op).moments);
  cpu::Case c{.op = Op::kFusion,
              .name = fmt::format("{}_group_{}_{}", op_name(op), shapes.size(), finite),
              .dtypes = {f, DType::kBF16},
              .gradient = false};
  for (double value : {3e-4, 7.0, 0.5, finite}) c.inputs.push_back(cpu::given(f, {1}, {value}));
  for (const Shape& shape : shapes) {
    c.inputs.push_back(cpu::normal(f, shape));
    c.inputs.push_back(cpu::x(shape));
    c.inputs.push_back(cpu::normal(f, shape, 0.1));
    if (moments == 2) c.inputs.push_back(cpu::uniform(f, shape, 0, 0.1));
  }
  c.body = [op, moments](const std::vector<TensorType>& types) {
    Graph body("update_group");
    std::vector<Value> leaves;
    for (const TensorType& type : types) {
      const std::string name = "leaf" + std::to_string(leaves.size());
      leaves.push_back({body.add({.op = Op::kInput, .results = {type}, .name = name}), 0});
    }
    const auto add = [&](const std::string& name, Op op, std::vector<Value> inputs, Attrs attrs) {
      const NodeId id = body.add({.op = op, .inputs = std::move(inputs), .attrs = std::move(attrs), .name = name});
      for (size_t r = 0; r < body.node(id).results.size(); ++r)
        body.outputs().push_back({fmt::format("{}.{}", name, r), {id, static_cast<int32_t>(r)}});
      return id;
    };
    for (size_t i = 4, n = 0; i < leaves.size(); i += 2 + moments, ++n) {
      const double decay = n % 2 == 0 ? 0.1 : 0.0;
      std::vector<Value> inputs(leaves.begin() + static_cast<ptrdiff_t>(i),
                                leaves.begin() + static_cast<ptrdiff_t>(i + 2 + moments));
      inputs.insert(inputs.begin() + op_facts(op).first_scalar, leaves.begin() + 4 - op_facts(op).scalars,
                    leaves.begin() + 4);
      const Attrs attrs = op == Op::kSgd
                              ? Attrs{{"momentum", 0.9}, {"nesterov", true}, {"weight_decay", decay}}
                              : Attrs{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", decay}};
      const NodeId update = add(fmt::format("{}{}", op_name(op), n), op, std::move(inputs), attrs);
      if (n % 2 == 0) add(fmt::format("cast{}", n), Op::kCast, {{update, 0}}, {{"to", std::string("bf16")}});
      if (n % 3 == 0)
        add(fmt::format("amax{}", n), Op::kReduce, {{update, 0}},
            {{"reduction", std::string("amax")}, {"axis", std::string("all")}});
    }
    return body;
  };
  return c;
}

}  // namespace octet::cuda
