// shard: brings a program of logical tensors to the parts that one rank of a mesh holds.
//
// States get layouts by the `split` of their parameters and the level of the sharded optimiser; then every graph is
// rewritten node by node: operands are brought to the layouts that the op's rule takes, by collectives, attributes that
// are sizes become local ones, and the rules give the layouts of the results. docs/ir.md, "Layouts".
//
// A linear's weight decides which way it goes: weights never move over tp. Column-split: x whole, y cut; row-split: x
// cut, y a sum, which is brought to the layout of the residual stream: copies, or with `sequence` cut along rows. cp
// cuts rows from the inputs on, and heads inside attention. Gradients stay sums until the apply graph.
#pragma once

#include "passes/pass.h"

namespace octet {

bool shard(Program& program, const CompileOptions& options);

}  // namespace octet
