// The completeness of the op table: every op has its facts, a reference kernel and a case, and cases of parts where a
// rank's place matters; case names are unique.
#include <gtest/gtest.h>

#include <set>

#include "ir/facts.h"
#include "ir/localize.h"
#include "kernels/cpu/testing/cases.h"

namespace octet::cpu {
namespace {

bool is_leaf(Op op) { return op == Op::kInput || op == Op::kParam || op == Op::kState || op == Op::kConstant; }

TEST(OpTable, EveryOpHasFactsReferenceAndCase) {
  std::set<Op> with_case;
  for (const Case& c : all_cases()) {
    if (!c.large) with_case.insert(c.op);
  }
  for (const OpInfo& info : all_ops()) {
    SCOPED_TRACE(info.name);
    if (is_leaf(info.op) || info.op == Op::kFusion) continue;
    const OpFacts& facts = op_facts(info.op);
    EXPECT_NE(facts.infer, nullptr) << "no shape rule in ir/ops";
    EXPECT_NE(facts.cost, nullptr) << "no cost in ir/ops";
    EXPECT_NE(std::string(facts.meaning), "") << "no meaning in ir/ops";
    EXPECT_NE(facts.gradient == nullptr, facts.no_gradient == nullptr) << "needs a gradient rule or a reason for none";
    EXPECT_NE(reference_kernel(info.op), nullptr) << "no kernels/cpu/<family>/reference.cc";
    if (facts.collective) continue;  // exec/collectives_test.cc
    EXPECT_TRUE(with_case.contains(info.op)) << "no entry in kernels/cpu/<family>/cases.cc";
  }
}

// So that conformance checks every row with them, and none is the slow one.
TEST(OpTable, EveryOpOfAPartHasCasesAndAFastRow) {
  std::set<std::pair<Op, std::string>> with_case;
  for (const Case& c : all_cases()) {
    for (const char* key : {"first", "origin", "first_head", "counted"})
      if (c.attrs.has(key)) with_case.emplace(c.op, key);
    for (DType dtype : c.dtypes) {
      const BuiltCase built = build_case(c, dtype, false);
      if (!is_localized(built.node())) continue;
      EXPECT_STRNE(select_kernel(built.graph, built.node()).name, "reference") << case_name(c, dtype);
    }
  }
  for (const OpInfo& info : all_ops()) {
    for (const char* key : {"first", "origin", "first_head", "counted"}) {
      if (find_attr(info.op, key) == nullptr) continue;
      EXPECT_TRUE(with_case.contains({info.op, key})) << info.name << " has no case with " << key;
    }
  }
}

TEST(OpTable, CaseNamesAreUnique) {
  std::set<std::string> names;
  for (const Case& c : all_cases()) {
    for (DType dtype : c.dtypes) EXPECT_TRUE(names.insert(case_name(c, dtype)).second) << case_name(c, dtype);
  }
}

TEST(OpTable, LastRowOfEveryOpIsTheReference) {
  for (const OpInfo& info : all_ops()) {
    ASSERT_FALSE(kernel_entries(info.op).empty()) << info.name;
    EXPECT_STREQ(kernel_entries(info.op).back().name, "reference") << info.name;
    std::set<std::string> names;
    for (const KernelEntry& entry : kernel_entries(info.op)) {
      EXPECT_EQ(entry.op, info.op) << entry.name;
      EXPECT_TRUE(names.insert(entry.name).second) << "two rows of " << info.name << " are called " << entry.name;
    }
  }
}

}  // namespace
}  // namespace octet::cpu
