// Training on arrays that an iterator gives: octet.train(..., rows=).
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "train/workload.h"

namespace octet::python {

namespace nb = nanobind;

class RowSource;

// Rows of an iterable, drawn when batches want them: ids, (ids, targets) or (ids, targets, weights), arrays of one dim.
// While the result lives, kRowData finds it by the name that `data_name` gets, for data.train.
std::shared_ptr<RowSource> open_rows(nb::handle rows, std::string& data_name);

extern const WorkloadRow kRowData;

}  // namespace octet::python
