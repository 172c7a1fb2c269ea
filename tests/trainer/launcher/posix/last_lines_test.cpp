#include "trainer/launcher/posix/last_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/support/temporary_folder.h"

namespace narrowcast::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Bytes kept of a text that is cut. The rest is for the note about the cut.
constexpr size_t kKept = kLongestText - 40;

// Not std::string(count, 'x'): for a constant count, GCC 12 warns of wrong bounds.
std::string many(const std::string& part, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += part;
  }
  return text;
}

// Returns the last lines of a stream that arrived in these parts.
std::vector<std::string> last_of(const std::vector<std::string>& parts) {
  LastLines last;
  for (const std::string& part : parts) {
    last.push(part);
  }
  return last.lines();
}

TEST(CutText, KeepsWhatIsShortEnough) {
  EXPECT_EQ(cut_text(""), "");
  EXPECT_EQ(cut_text(many("x", kLongestText)), many("x", kLongestText));
}

TEST(CutText, SaysHowMuchIsMissing) {
  EXPECT_EQ(cut_text(many("x", kLongestText + 1)), many("x", kKept) + " ... (41 more bytes)");
  EXPECT_EQ(cut_text(many("x", 1 << 20)), many("x", kKept) + " ... (1044520 more bytes)");
}

TEST(CutText, LeavesWhatWasCutAsItIs) {
  const std::string cut = cut_text(many("x", 1 << 20));
  EXPECT_LE(cut.size(), kLongestText);
  EXPECT_EQ(cut_text(cut), cut);
}

TEST(CutText, SplitsNoCharacter) {
  for (const std::string character : {"\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80"}) {
    for (size_t shift = 0; shift < character.size(); ++shift) {
      const std::string before = many("x", kKept - shift);
      EXPECT_EQ(cut_text(before + many(character, 50)),
                before + " ... (" + std::to_string(50 * character.size()) + " more bytes)");
    }
  }
}

TEST(CutText, CutsWhatIsNoTextSomewhere) {
  EXPECT_EQ(cut_text(many("\x80", kLongestText + 5)), many("\x80", kKept) + " ... (45 more bytes)");
}

TEST(LastLines, AreAtMostSoMany) {
  EXPECT_THAT(last_of({}), IsEmpty());
  EXPECT_THAT(last_of({"one\ntw", "o\n\nunfinished"}), ElementsAre("one", "two", "", "unfinished"));
  const std::vector<std::string> lines = last_of({"0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11"});
  EXPECT_THAT(lines, SizeIs(kMostLines));
  EXPECT_EQ(lines.front(), "2");
  EXPECT_EQ(lines.back(), "11");
}

TEST(LastLines, ShowTheLastStateOfAProgressBar) {
  EXPECT_THAT(last_of({"begin\n", "10%\r", "20%\r30%", "\r"}), ElementsAre("begin", "30%"));
  EXPECT_THAT(last_of({"\r10%", "\r20%", "\r30%"}), ElementsAre("20%", "30%"));  // 30% may grow
  EXPECT_THAT(last_of({"10%\r20%\nend\n"}), ElementsAre("10%", "20%", "end"));
  EXPECT_THAT(last_of({"one\r", "\ntwo\r\n", "\r\r\n"}), ElementsAre("one", "two", ""));
}

TEST(LastLines, KeepWhatACarriageReturnEnds) {
  EXPECT_THAT(last_of({"the real error\rcleaning up"}), ElementsAre("the real error", "cleaning up"));
  EXPECT_THAT(last_of({"the real error\r", "cleaning up\r\n"}), ElementsAre("the real error", "cleaning up"));
  EXPECT_THAT(last_of({"begin\n", many("10%\r", 5000), "end\n", many("20%\r", 5000)}),
              ElementsAre("begin", "10%", "end", "20%"));
}

TEST(LastLines, AreCut) {
  const std::vector<std::string> lines = last_of({many("x", 3000), many("x", 3000), "\n", many("y", 5000)});
  EXPECT_THAT(lines,
              ElementsAre(many("x", kKept) + " ... (1944 more bytes)", many("y", kKept) + " ... (944 more bytes)"));
}

TEST(ReadLastLines, ReadsOnlyTheEndOfAHugeFile) {
  const testing::TemporaryFolder folder;
  // The first line exceeds the 64 KiB that are read, so it is not shown.
  EXPECT_THAT(read_last_lines(folder.write("huge", many("x", 1 << 17) + "\nlast\n")), ElementsAre("last"));
  EXPECT_THAT(read_last_lines(folder.write("bar", many("12345%\r", 1 << 17))), ElementsAre("12345%"));
}

TEST(ReadLastLines, ReadsTheEndOfALineThatIsLongerThanThat) {
  const testing::TemporaryFolder folder;
  const std::string long_line = many("x", 1 << 17);
  // The newline is one byte of the 64 KiB that are read.
  EXPECT_THAT(read_last_lines(folder.write("ended", "before\n" + long_line + "\n")),
              ElementsAre(many("x", kKept) + " ... (61479 more bytes)"));
  EXPECT_THAT(read_last_lines(folder.write("open", "before\n" + long_line)),
              ElementsAre(many("x", kKept) + " ... (61480 more bytes)"));
}

TEST(ReadLastLines, ReadsAtMostSoMany) {
  const testing::TemporaryFolder folder;
  EXPECT_THAT(read_last_lines(folder.write("many", many("x\n", 20))), SizeIs(kMostLines));
  EXPECT_THAT(read_last_lines(folder.write("none", "")), IsEmpty());
  EXPECT_THAT(read_last_lines(folder.write("few", "a\nb")), ElementsAre("a", "b"));
  EXPECT_THAT(read_last_lines("/no/such"), IsEmpty());
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);  // without a writer: reading would wait for ever
  EXPECT_THAT(read_last_lines(pipe), IsEmpty());
}

}  // namespace
}  // namespace narrowcast::launcher
