#include "trainer/launcher/store/sealed_entries.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/job_secret.h"

namespace narrowcast::launcher {
namespace {

using testing::error_message;
using ::testing::HasSubstr;
using ::testing::Optional;
using testing::secret_of;

class SealedEntriesTest : public ::testing::Test {
 protected:
  std::string value(const std::string& key) const { return store->get_to_str(key); }
  void put(const std::string& key, const std::string& value) { store->set(key, value); }

  StorePtr store = c10::make_intrusive<c10d::HashStore>();
  const JobSeal seal{.secret = secret_of("the secret of all launchers"), .job = "job", .session = "run"};
  SealedEntries writer{store, seal};
  SealedEntries reader{store, seal};
};

TEST_F(SealedEntriesTest, ArriveAsTheyWereWritten) {
  for (const std::string text : {"", "one", "two words\nand a line", "narrowcast-seal-1 x 1 y"}) {
    writer.set("key", text);
    EXPECT_THAT(reader.get("key"), Optional(text));
  }
  EXPECT_EQ(reader.get("none"), std::nullopt);
  EXPECT_EQ(reader.rejected(), 0);
}

TEST_F(SealedEntriesTest, IgnoreWhatAStrangerWrites) {
  put("key", "first");
  EXPECT_EQ(reader.get("key"), std::nullopt);
  writer.set("key", "ours");
  EXPECT_THAT(reader.get("key"), Optional(std::string("ours")));
  const std::string good = value("key");
  std::string other_text = good;
  other_text.back() = 'S';
  std::string other_number = good;
  other_number[other_number.rfind(' ') - 1] = '7';
  for (const std::string& forged : {std::string("text"), std::string("narrowcast-seal-1"),
                                    std::string("narrowcast-seal-1 "), other_text, other_number}) {
    put("key", forged);
    EXPECT_THAT(reader.get("key"), Optional(std::string("ours"))) << forged;
    EXPECT_THAT(reader.get("key"), Optional(std::string("ours"))) << "read again, it counts once";
  }
  EXPECT_EQ(reader.rejected(), 6);
}

TEST_F(SealedEntriesTest, ProveNothingElsewhere) {
  writer.set("key", "text");
  put("another", value("key"));
  EXPECT_EQ(reader.get("another"), std::nullopt);
  EXPECT_EQ(SealedEntries(store, {.secret = seal.secret, .job = "another", .session = "run"}).get("key"), std::nullopt);
  EXPECT_EQ(
      SealedEntries(store, {.secret = secret_of("another secret, too"), .job = "job", .session = "run"}).get("key"),
      std::nullopt);
  EXPECT_EQ(SealedEntries(store, {.secret = seal.secret, .job = "job", .session = "another"}).get("key"), std::nullopt);
  EXPECT_THAT(SealedEntries(store, {.secret = seal.secret, .job = "job"}).get_in("run", "key"),
              Optional(std::string("text")));
}

TEST_F(SealedEntriesTest, DoNotComeBack) {
  writer.set("key", "old");
  const std::string old = value("key");
  writer.set("key", "new");
  EXPECT_THAT(reader.get("key"), Optional(std::string("new")));
  put("key", old);
  EXPECT_THAT(reader.get("key"), Optional(std::string("new")));
  EXPECT_EQ(reader.rejected(), 1);
}

TEST_F(SealedEntriesTest, AreWrittenAgainWhereTheyWereChangedOrRemoved) {
  writer.set("key", "ours");
  const std::string good = value("key");
  writer.set_again("key");
  EXPECT_EQ(value("key"), good) << "nothing to do";
  put("key", "theirs");
  writer.set_again("key");
  EXPECT_THAT(reader.open("key", value("key")), Optional(std::string("ours")));
  EXPECT_EQ(reader.rejected(), 0);
  store->deleteKey("key");
  writer.set_again("key");
  EXPECT_THAT(reader.open("key", value("key")), Optional(std::string("ours")));
  EXPECT_EQ(reader.newest("key"), 3) << "each time as a new entry";
}

TEST_F(SealedEntriesTest, AreReadWhereAStrangerOverwritesThemAtOnce) {
  for (int64_t number = 1; number <= 20; ++number) {
    writer.set("key", std::to_string(number));
    number % 2 == 0 ? put("key", "theirs") : static_cast<void>(store->deleteKey("key"));
    EXPECT_THAT(reader.get("key"), Optional(std::to_string(number)));
    EXPECT_EQ(reader.newest("key"), number);
  }
  EXPECT_EQ(reader.spoiled("key"), 19) << "the first was not there before it was removed";
  EXPECT_EQ(reader.rejected(), 1);
}

TEST_F(SealedEntriesTest, AreReadWhereAStrangerWritesBackTheLastOne) {
  writer.set("key", "old");
  const std::string old = value("key");
  EXPECT_THAT(reader.get("key"), Optional(std::string("old")));
  writer.set("key", "new");
  put("key", old);
  for (int reads = 0; reads < 8; ++reads) reader.get("key");
  EXPECT_THAT(reader.get("key"), Optional(std::string("new")));
}

// The text is lost, yet the copy proves that the writer lived.
TEST_F(SealedEntriesTest, AreCountedWhereAStrangerOverwritesTheirCopies) {
  for (int64_t number = 1; number <= 20; ++number) {
    writer.set("key", std::to_string(number));
    for (const std::string& key : store->listKeys()) put(key, "theirs");
    EXPECT_EQ(reader.get("key"), std::nullopt);
    EXPECT_EQ(reader.newest("key"), number);
  }
  writer.set("key", "text");
  EXPECT_THAT(reader.get("key"), Optional(std::string("text")));
}

TEST_F(SealedEntriesTest, AreNotCountedForTheKeysOfOtherCopies) {
  for (const JobSeal& other : {JobSeal{.secret = secret_of("another secret, too"), .job = "job", .session = "run"},
                               JobSeal{.secret = seal.secret, .job = "another", .session = "run"},
                               JobSeal{.secret = seal.secret, .job = "job", .session = "another"}}) {
    SealedEntries(store, other).set("key", "text");
  }
  writer.set("another", "text");
  put("key", "theirs");
  EXPECT_EQ(reader.get("key"), std::nullopt);
  EXPECT_EQ(reader.newest("key"), 0);
}

TEST_F(SealedEntriesTest, KeepSoManyCopiesAndNoMore) {
  for (int64_t number = 1; number <= 2 * SealedEntries::kCopies; ++number) writer.set("key", std::to_string(number));
  EXPECT_EQ(store->getNumKeys(), 1 + SealedEntries::kCopies);
  put("key", "theirs");
  EXPECT_EQ(reader.get("key"), std::nullopt) << "its first copy is gone";
  reader.begin_at("key", SealedEntries::kCopies);
  EXPECT_THAT(reader.get("key"), Optional(std::to_string(2 * SealedEntries::kCopies)));
}

TEST_F(SealedEntriesTest, WithoutASecretAreTexts) {
  SealedEntries plain(store, {});
  plain.set("key", "text");
  EXPECT_EQ(value("key"), "text");
  EXPECT_THAT(plain.get("key"), Optional(std::string("text")));
  writer.set("key", "sealed");
  EXPECT_THAT(error_message<CorruptInputError>([&] { plain.get("key"); }),
              HasSubstr("this launcher needs --secret_file"));
}

}  // namespace
}  // namespace narrowcast::launcher
