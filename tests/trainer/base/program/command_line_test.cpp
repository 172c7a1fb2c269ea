#include "trainer/base/program/command_line.h"

#include <absl/flags/reflection.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <narrowcast/errors.h>
#include "tests/support/error_message.h"
#include "tests/support/temporary_folder.h"
#include "tests/trainer/base/program/sample_program.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::program {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::SizeIs;
using Words = std::vector<std::string>;

const std::vector<std::string> kNames = {"none", "noop", "allreduce", "quantize_per_tensor", "quantize_per_channel"};

TEST(ClosestName, FindsASlip) {
  EXPECT_EQ(closest_name("allreduse", kNames), "allreduce");
  EXPECT_EQ(closest_name("alreduce", kNames), "allreduce");
  EXPECT_EQ(closest_name("noopp", kNames), "noop");
  EXPECT_EQ(closest_name("quantize_per_chanel", kNames), "quantize_per_channel");
}

TEST(ClosestName, FindsABeginning) {
  EXPECT_EQ(closest_name("all", kNames), "allreduce");
  EXPECT_EQ(closest_name("quantize_per_", kNames), "quantize_per_tensor");
}

TEST(ClosestName, IsEmptyIfNothingIsNear) {
  EXPECT_EQ(closest_name("powersgd", kNames), "");
  EXPECT_EQ(closest_name("", kNames), "");
  EXPECT_EQ(closest_name("x", {}), "");
}

TEST(ClosestName, CountsEditsNotLetters) {
  EXPECT_EQ(closest_name("abcxyz", {"abcdyz"}), "abcdyz");  // one of six letters replaced
  EXPECT_EQ(closest_name("abxxxz", {"abcdyz"}), "");        // three of six: too far
}

// Flags are global: each test restores them.
class CommandLineTest : public ::testing::Test {
 protected:
  CommandLine parse(const Words& arguments) const { return CommandLine(description, arguments); }

  // The message with which the command line is refused.
  std::string refusal(const Words& arguments) const {
    return testing::error_message<c10::ValueError>([&] { parse(arguments); });
  }

  Description description = sample_description();
  const absl::FlagSaver saved_flags;
  const testing::TemporaryFolder folder;
};

TEST_F(CommandLineTest, SetsFlagsInEitherSpelling) {
  parse({"--sample_steps=3", "--sample-rate", "-0.25", "-sample-dry-run", "--sample_hooks=none,noop",
         R"(--sample_paths=a,b\,c)"});
  EXPECT_EQ(absl::GetFlag(FLAGS_sample_steps), 3);
  EXPECT_EQ(absl::GetFlag(FLAGS_sample_rate), -0.25);
  EXPECT_TRUE(absl::GetFlag(FLAGS_sample_dry_run));
  EXPECT_EQ(absl::GetFlag(FLAGS_sample_hooks), (Words{"none", "noop"}));
  EXPECT_EQ(absl::GetFlag(FLAGS_sample_paths).paths, (Words{"a", "b,c"}));
}

TEST_F(CommandLineTest, LastValueCounts) {
  parse({"--sample_steps=3", "--sample_steps=4"});
  EXPECT_EQ(absl::GetFlag(FLAGS_sample_steps), 4);
}

TEST_F(CommandLineTest, KeepsDashesAndEqualSignsInValues) {
  parse({"--sample_data=a-b=c"});
  EXPECT_EQ(absl::GetFlag(FLAGS_sample_data), "a-b=c");
  parse({"--sample_data="});
  EXPECT_EQ(absl::GetFlag(FLAGS_sample_data), "");
}

TEST_F(CommandLineTest, TurnsSwitchesOff) {
  for (const Words& off : {Words{"--nosample_dry_run"}, {"--no-sample-dry-run"}, {"--sample_dry_run=false"}}) {
    absl::SetFlag(&FLAGS_sample_dry_run, true);
    EXPECT_TRUE(parse(off).given("sample_dry_run"));
    EXPECT_FALSE(absl::GetFlag(FLAGS_sample_dry_run)) << off[0];
  }
}

TEST_F(CommandLineTest, KnowsWhatWasGiven) {
  const CommandLine line = parse({"--sample_steps=10"});
  EXPECT_TRUE(line.given("sample_steps"));  // even though 10 is the default
  EXPECT_FALSE(line.given("sample_rate"));
}

TEST_F(CommandLineTest, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(refusal({"--sample_step=3"}), "unknown flag --sample_step; did you mean --sample_steps?");
  EXPECT_EQ(refusal({"--sample-ratte=3"}), "unknown flag --sample-ratte; did you mean --sample_rate?");
  EXPECT_EQ(refusal({"--colour"}), "unknown flag --colour (--help lists the flags)");
  EXPECT_EQ(refusal({"--nosample_steps"}), "unknown flag --nosample_steps; did you mean --sample_steps?");
  EXPECT_EQ(refusal({"train.txt"}),
            "unexpected argument \"train.txt\": flags are written --flag=value (--help lists them)");
  EXPECT_THAT(refusal({"--sample_dry_run", "true"}), HasSubstr("unexpected argument \"true\""));
  EXPECT_THAT(refusal({"--", "--sample_steps=3"}), HasSubstr("unexpected argument \"--sample_steps=3\""));
}

TEST_F(CommandLineTest, RefusesBadValues) {
  EXPECT_EQ(refusal({"--sample_steps=many"}), "--sample_steps=many: not a valid value of type integer");
  EXPECT_EQ(refusal({"--sample_steps=99999999999"}), "--sample_steps=99999999999: not a valid value of type integer");
  EXPECT_EQ(refusal({"--sample_rate", "fast"}), "--sample_rate=fast: not a valid value of type number");
  EXPECT_EQ(refusal({"--sample_dry_run=maybe"}), "--sample_dry_run=maybe: not a valid value of type yes/no");
  EXPECT_EQ(refusal({"--sample-data"}), "--sample-data needs a value: write --sample-data=VALUE");
  EXPECT_EQ(refusal({"--sample_data", "--sample_steps=3"}), "--sample_data needs a value: write --sample_data=VALUE");
}

TEST_F(CommandLineTest, LeavesTheRestToTheProgramItStarts) {
  description.positionals = Positionals::kEndTheFlags;
  EXPECT_EQ(parse({"--sample_steps=3", "train", "--sample_steps=4", "--", "--help"}).rest(),
            (Words{"train", "--sample_steps=4", "--", "--help"}));
  EXPECT_EQ(absl::GetFlag(FLAGS_sample_steps), 3);
  EXPECT_EQ(parse({"--sample_dry_run", "--", "--odd-name", "x"}).rest(), (Words{"--odd-name", "x"}));
  EXPECT_EQ(parse({"--sample_data", "file", "train"}).rest(), (Words{"train"}));
  EXPECT_EQ(parse({"-"}).rest(), (Words{"-"}));
}

TEST_F(CommandLineTest, ReadsFlagFiles) {
  const std::string inner = folder.write("inner", "--sample-rate=2\n");
  const std::string outer =
      folder.write("outer", "# a comment\n\n  --sample_steps=5 \r\n--flagfile=" + inner + "\n--sample_data=two words");
  const CommandLine line = parse({"--sample_steps=3", "--flagfile", outer, "--sample_rate=3"});
  EXPECT_EQ(absl::GetFlag(FLAGS_sample_steps), 5);
  EXPECT_EQ(absl::GetFlag(FLAGS_sample_rate), 3);
  EXPECT_EQ(absl::GetFlag(FLAGS_sample_data), "two words");
  EXPECT_TRUE(line.given("sample_data"));
}

TEST_F(CommandLineTest, NamesTheLineOfABadFlagFile) {
  const std::string bad = folder.write("bad", "--sample_steps=1\n--sample_stepps=2\n");
  EXPECT_EQ(refusal({"--flagfile=" + bad}), bad + ":2: unknown flag --sample_stepps; did you mean --sample_steps?");
  EXPECT_THAT(refusal({"--flagfile=" + folder.write("word", "train.txt\n")}),
              HasSubstr(":1: \"train.txt\" is not a flag"));
  EXPECT_THAT(refusal({"--flagfile=" + folder.write("bare", "--sample_data\n--sample_steps=1")}),
              HasSubstr(":1: --sample_data needs a value"));
  EXPECT_EQ(refusal({"--flagfile=/no/such"}), "--flagfile=/no/such: cannot be read: No such file or directory");
  EXPECT_EQ(refusal({"--flagfile=" + folder.path().string()}),
            "--flagfile=" + folder.path().string() + ": is a folder, but must be a file");
  const std::string own = folder / "own";
  EXPECT_THAT(refusal({"--flagfile=" + folder.write("own", "--flagfile=" + own)}), HasSubstr("more than 8 deep"));
}

TEST_F(CommandLineTest, FlagFilesAreRegularFilesThatCanBeReadToTheirEnd) {
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);  // has no writer: reading would wait for ever
  EXPECT_EQ(refusal({"--flagfile=" + pipe}), "--flagfile=" + pipe + ": is not a regular file");
  EXPECT_EQ(refusal({"--flagfile=/dev/null"}), "--flagfile=/dev/null: is not a regular file");
  EXPECT_EQ(testing::error_message<CorruptInputError>([&] { parse({"--flagfile=/proc/self/mem"}); }),
            "--flagfile=/proc/self/mem: cannot be read at byte 0: Input/output error");
  const std::string large = folder.write("large", std::string((1 << 20) + 1, '\n'));
  EXPECT_EQ(testing::error_message<CorruptInputError>([&] { parse({"--flagfile=" + large}); }),
            "--flagfile=" + large + ": has more than 1048576 bytes");
}

TEST_F(CommandLineTest, ShowsArgumentsOnOneLineAndNotEndless) {
  EXPECT_EQ(refusal({"--sample_steps=1\n\x1b[2J"}), "--sample_steps=1\\n\\x1b[2J: not a valid value of type integer");
  EXPECT_THAT(refusal({"--sample_steps=" + std::string(100'000, '7')}),
              AllOf(HasSubstr("7 [100000 bytes] 7"), HasSubstr(": not a valid value"), SizeIs(Lt(1100))));
  EXPECT_THAT(refusal({"--flagfile=" + folder.write("binary", std::string("\x7f"
                                                                          "ELF\0\x1b",
                                                                          6))}),
              HasSubstr(R"(:1: "\x7fELF\x00\x1b" is not a flag)"));
}

TEST_F(CommandLineTest, AnswersHelpAndVersion) {
  EXPECT_EQ(parse({"--help"}).answer(), help_text(description));
  EXPECT_EQ(parse({"-h", "--no-such-flag"}).answer(), help_text(description));
  EXPECT_EQ(parse({"--version"}).answer(), "sample 1.2.3\n");
  EXPECT_EQ(parse({}).answer(), std::nullopt);
}

TEST_F(CommandLineTest, ChecksThatHelpShowsEveryFlag) {
  description.groups.pop_back();
  EXPECT_THROW(parse({}), c10::Error);
}

// The output and the exit code of a main with these arguments.
struct Ending {
  int code;
  std::string out;
  std::string err;
};

Ending ending(const Description& description, std::vector<std::string> arguments) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) {
    argv.push_back(argument.data());
  }
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int code = run_main(description, static_cast<int>(argv.size()), argv.data(),
                            [](const CommandLine&) { return absl::GetFlag(FLAGS_sample_steps); });
  return {code, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
}

TEST_F(CommandLineTest, MainAnswersOnStandardOutput) {
  const Ending help = ending(description, {"sample", "--help"});
  EXPECT_EQ(help.code, kSuccess);
  EXPECT_EQ(help.out, help_text(description));
  EXPECT_EQ(help.err, "");
}

TEST_F(CommandLineTest, MainRunsTheBodyWithTheFlags) {
  EXPECT_EQ(ending(description, {"sample", "--sample_steps=42"}).code, 42);
}

TEST_F(CommandLineTest, MainReportsWrongUseInOneLine) {
  const Ending wrong = ending(description, {"sample", "--sample_steps=x"});
  EXPECT_EQ(wrong.code, kWrongUse);
  EXPECT_EQ(wrong.out, "");
  EXPECT_EQ(wrong.err, "sample: --sample_steps=x: not a valid value of type integer\n");
}

}  // namespace

}  // namespace narrowcast::program
