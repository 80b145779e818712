// Members of a request's JSON.
#include "serve/fields.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace octet::serve {
namespace {

TEST(Fields, ANumberThatNoDoubleHoldsIsRefusedWhereItIsRead) {
  const nlohmann::ordered_json body =
      parse_body(R"({"temperature": 1e400, "top_p": 0.5, "seed": -1e999, "other": [1e400]})");
  Fields fields(body);
  EXPECT_EQ(fields.number("top_p", 0, 1), 0.5);
  EXPECT_THROW(fields.number("temperature", 0, 100), ApiError);
  EXPECT_THROW(fields.integer("seed", -10, 10), ApiError);
  EXPECT_EQ(fields.unknown(), std::vector<std::string>{"other"});
}

}  // namespace
}  // namespace octet::serve
