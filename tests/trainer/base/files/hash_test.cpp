#include "trainer/base/files/hash.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace narrowcast {
namespace {

TEST(Fnv1a, IsTheOneOfItsAuthors) {
  EXPECT_EQ(fnv1a(""), 0xcbf29ce484222325u);  // from the test vectors of draft-eastlake-fnv
  EXPECT_EQ(fnv1a("a"), 0xaf63dc4c8601ec8cu);
  EXPECT_EQ(fnv1a("foobar"), 0x85944171f73967e8u);
  EXPECT_EQ(fnv1a("bar", fnv1a("foo")), fnv1a("foobar"));
}

// Computed with Python, whose integers have any size.
TEST(HashOfContent, IsTheDocumentedFormula) {
  EXPECT_EQ(hash_of_content("foobar"), fnv1a("foobar"));
  EXPECT_EQ(hash_of_content("12345678"), 0xe3356e99bff6f05au);
  EXPECT_EQ(hash_of_content("the quick brown fox"), 0x865cea8529e9e7aau);
  EXPECT_EQ(hash_of_content("45678", hash_of_content("abcdefgh123")), 0x24460d2cee30638du);
}

// Changes each single bit, and the highest bits of each pair of words, which would cancel out in 64-bit products.
TEST(HashOfContent, EveryBitCounts) {
  std::string content(256, '\x5a');
  std::set<uint64_t> seen = {hash_of_content(content)};
  for (size_t bit = 0; bit < 8 * content.size(); ++bit) {
    content[bit / 8] ^= static_cast<char>(1 << bit % 8);
    seen.insert(hash_of_content(content));
    content[bit / 8] ^= static_cast<char>(1 << bit % 8);
  }
  EXPECT_EQ(seen.size(), 1 + 8 * content.size());
  for (size_t one = 7; one < content.size(); one += 8) {
    for (size_t other = one + 8; other < content.size(); other += 8) {
      content[one] ^= '\x80';
      content[other] ^= '\x80';
      EXPECT_TRUE(seen.insert(hash_of_content(content)).second) << one << " and " << other;
      content[one] ^= '\x80';
      content[other] ^= '\x80';
    }
  }
}

TEST(HashOfContent, ZerosAndOrderCount) {
  std::set<uint64_t> seen;
  for (size_t size = 0; size < 100; ++size) {
    seen.insert(hash_of_content(std::string(size, '\0')));
  }
  EXPECT_EQ(seen.size(), 100u);
  EXPECT_NE(hash_of_content("aaaaaaaabbbbbbbb"), hash_of_content("bbbbbbbbaaaaaaaa"));
}

}  // namespace
}  // namespace narrowcast
