// Messages on the wire: what was encoded comes back, and nothing else is taken for a message.
#include "dist/message.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "base/testing/test_error.h"

namespace octet {
namespace {

const Message kCall = {MessageType::kCall, {"12", "compare plan", std::string("a\0b", 3), ""}};

TEST(Message, ComesBackWhole) {
  for (const Message& message : {kCall, Message{MessageType::kLost, {}}}) {
    const std::string bytes = encode(message);
    size_t size = 0;
    const auto found = decode(bytes + "rest", kLongestMessage, size);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->type, message.type);
    EXPECT_EQ(found->fields, message.fields);
    EXPECT_EQ(size, bytes.size());
    for (size_t part = 0; part < bytes.size(); ++part)
      EXPECT_FALSE(decode(std::string_view(bytes).substr(0, part), kLongestMessage, size));
  }
}

TEST(Message, FieldsAreChecked) {
  EXPECT_EQ(kCall.number(0), 12);
  EXPECT_EQ(error_of([] { kCall.number(1); }), "field 1 of a message of type 4 is no number");
  EXPECT_EQ(error_of([] { kCall.field(4); }), "a message of type 4 has 4 fields");
  EXPECT_EQ(error_of([] {
              encode({MessageType::kCall, {std::string(kLongestMessage, 'x')}});
            }),
            "a message of 268435461 bytes between ranks (at most 268435456): send it in parts");
  size_t size = 0;
  EXPECT_EQ(error_of([&] { decode(encode(kCall), 10, size); }), "a message of 34 bytes (want 1 to 10)");
}

TEST(Message, DamagedBytesAreAMessageOrAnError) {
  std::mt19937 random(7);
  const std::string whole = encode(kCall);
  for (int trial = 0; trial < 20'000; ++trial) {
    std::string bytes = whole;
    for (int change = 0; change < 3; ++change) bytes[random() % bytes.size()] = static_cast<char>(random());
    size_t size = 0;
    try {
      const auto found = decode(bytes, kLongestHello, size);
      EXPECT_TRUE(!found || encode(*found) == bytes.substr(0, size));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    }
  }
}

}  // namespace
}  // namespace octet
