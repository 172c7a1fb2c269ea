// Wrong command lines of narrowcast-run in this process. Each prints one line and has exit code 2.
#include "trainer/launcher/flags/launch_flags.h"

#include <absl/flags/reflection.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "tests/support/temporary_folder.h"
#include "trainer/base/program/failure.h"

namespace narrowcast::launcher {
namespace {

using Words = std::vector<std::string>;

struct ReadCommand {
  int code;
  std::string output;
  std::string errors;
  LaunchRequest request = {};
};

// The ending of a program that reads these words of a command line as narrowcast-run does, and starts nothing.
ReadCommand read_command(Words words) {
  const absl::FlagSaver saver;
  ReadCommand end = {};
  words.insert(words.begin(), "narrowcast-run");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  end.code = program::run_main(launch_description(), static_cast<int>(argv.size()), argv.data(),
                               [&](const program::CommandLine& line) {
                                 end.request = read_launch_request(line);
                                 return int{program::kSuccess};
                               });
  end.output = ::testing::internal::GetCapturedStdout();
  end.errors = ::testing::internal::GetCapturedStderr();
  return end;
}

void expect_refused(const Words& words, const std::string& message) {
  const ReadCommand end = read_command(words);
  EXPECT_EQ(end.code, program::kWrongUse);
  EXPECT_EQ(end.output, "");
  EXPECT_EQ(end.errors, "narrowcast-run: " + message + "\n");
}

struct WrongUse {
  Words flags;  // The first one is the wrong one, or one that cannot take effect beside the others.
  std::string message;
};

void PrintTo(const WrongUse& use, std::ostream* out) { *out << ::testing::PrintToString(use.flags); }

const std::vector<WrongUse>& wrong_uses() {
  static const std::vector<WrongUse> uses = {
      {{"--nnode=2"}, "unknown flag --nnode; did you mean --nnodes?"},
      {{"--role=" + std::string(256, 'r')}, "--role: has 256 bytes, but may have 255 at most"},
      {{"--max_restarts=-1"}, "--max_restarts=-1: must be 0 or more"},
      {{"--recovery=in_place"},
       "--recovery=in_place: needs --max_restarts, how many processes may be replaced within an hour"},
      {{"--recovery=never"}, "--recovery=never: must be auto, in_place or restart"},
      {{"--monitor-interval=0"}, "--monitor_interval=0: must be from 0.01 to 86400 s"},
      {{"--monitor_interval=nan"}, "--monitor_interval=nan: must be from 0.01 to 86400 s"},
      {{"--shutdown_timeout=-1"}, "--shutdown_timeout=-1: must be from 0 to 86400 s"},
      {{"--numa_binding=socks"}, "--numa_binding=socks: must be node, socket, exclusive or core-complex"},
      {{"--nnodes=2"}, "--nnodes=2 needs --master_addr, the address at which the other nodes reach node 0"},
      {{"--nnodes=1:2", "--master_addr=127.0.0.1"}, "--nnodes=1:2: a range of nodes needs --rdzv_backend=c10d"},
      {{"--node_rank=2", "--nnodes=2"}, "--node_rank=2: must be from 0 to 1 with --nnodes=2"},
      {{"--node_rank=-1"}, "--node_rank=-1: must be from 0 to 0 with --nnodes=1"},
      {{"--standalone", "--nnodes=2"}, "--standalone is for one node, but --nnodes=2"},
      {{"--standalone", "--master_port=1234"},
       "--standalone excludes --master_addr and --master_port: --standalone chooses the address and port"},
      {{"--standalone", "--rdzv_endpoint=127.0.0.1"},
       "--standalone and --rdzv_endpoint exclude each other: --standalone chooses the address and port"},
      {{"--isolate=yes"}, "--isolate=yes: must be auto, on or off"},
      {{"--simulate_us=-1", "--simulate_gbit=1"}, "--simulate_us=-1: must be from 0 to 1000000 microseconds"},
      {{"--simulate_us=50"}, "--simulate_us=50: needs --simulate_gbit, the rate of the simulated network"},
      {{"--simulate_gbit=1", "--nnodes=2", "--master_addr=127.0.0.1"},
       "--simulate_gbit is for one node, but --nnodes=2"},
      {{"--simulate_gbit=1", "--isolate=off"},
       "--simulate_gbit and --isolate=off exclude each other: a simulated network is always private to the job"},
      {{"--master_addr=127.0.0.1", "--nnodes=2", "--rdzv_backend=c10d"},
       "--master_addr has no effect with --rdzv_backend=c10d; use --rdzv_endpoint"},
      {{"--master_port=65536", "--nnodes=2", "--master_addr=127.0.0.1"},
       "--master_port: port 65536 must be from 1 to 65535 for several nodes"},
      {{"--rdzv_backend=etcd"}, "--rdzv_backend=etcd: must be static or c10d"},
      {{"--rdzv_backend=c10d", "--nnodes=2"},
       "--rdzv_backend=c10d with --nnodes=2 needs --rdzv_endpoint=HOST:PORT, the same on all nodes"},
      {{"--rdzv_endpoint=127.0.0.1", "--master_addr=127.0.0.1"},
       "--rdzv_endpoint and --master_addr exclude each other: both set the address at which the nodes meet"},
      {{"--rdzv_id=" + std::string(256, 'i')}, "--rdzv_id: has 256 bytes, but may have 255 at most"},
      {{"--rdzv_conf=join_timeout=3"}, "--rdzv_conf has no effect with one node"},
      {{"--rdzv_conf=joint_timeout=3", "--nnodes=2", "--master_addr=127.0.0.1"},
       "--rdzv_conf: unknown key 'joint_timeout'; known: close_timeout, heartbeat_timeout, is_host, join_timeout, "
       "keep_alive_interval, keep_alive_max_attempt, last_call_timeout, read_timeout, store_type"},
      {{"--local_addr=127.0.0.1"}, "--local_addr has no effect with one node"},
      {{"--local_addr=127.0.0.1:80", "--nnodes=2", "--master_addr=127.0.0.1"},
       "--local_addr=127.0.0.1:80: must be a name or an address"},
      {{"--secret_file=/no/such/file"}, "--secret_file: /no/such/file: cannot be read: No such file or directory"},
      {{"--prefix", "--log_dir=x"}, "--prefix and --log_dir exclude each other: output in files is never prefixed"},
      {{"--log_line_prefix_template=$rank", "--noprefix"}, "--log_line_prefix_template has no effect with --noprefix"},
      {{"--log_line_prefix_template=$rank", "--log_dir=x"},
       "--log_line_prefix_template has no effect with --log_dir alone: output in files is never prefixed"},
      {{"--log_line_prefix_template=${x}"},
       "--log_line_prefix_template=${x}: '${x}' is not a variable; write ${rank}, ${local_rank}, ${role_name} or "
       "${hostname}, "
       "and $$ for a dollar sign"},
      {{"--log_dir="}, "--log_dir=: must name a folder"},
      {{"--local_ranks_filter="}, "--local_ranks_filter=: must name at least one local rank"},
      {{"--local_ranks_filter=0", "--log_dir=x"},
       "--local_ranks_filter has no effect with --log_dir alone, which shows no output; add --tee"},
      {{"--duplicate_stdout_filters=a,"},
       "--duplicate_stdout_filters=a,: contains an empty text, which every line matches"},
      {{"--duplicate_stderr_filters="},
       "--duplicate_stderr_filters=: contains an empty text, which every line matches"},
      {{"--nono_python"},
       "--nono_python: programs are always started as they are; write `python3 SCRIPT` as the program"},
      {{"--module"}, "--module: programs are started as they are; write `python3 -m MODULE` as the program"},
      {{"--start_method=spawn"}, "--start_method=spawn: has no effect, because workers are separate programs"},
      {{"--virtual_local_rank=maybe"}, "--virtual_local_rank=maybe: not a valid value of type yes/no"},
  };
  return uses;
}

class WrongLaunchTest : public ::testing::TestWithParam<WrongUse> {};

TEST_P(WrongLaunchTest, IsOneLineAndExitCodeTwo) {
  Words words = GetParam().flags;
  words.push_back("echo");
  expect_refused(words, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(Values, WrongLaunchTest, ::testing::ValuesIn(wrong_uses()));

TEST(LaunchFlags, NeedAProgram) {
  expect_refused({"--max_restarts=1"}, "no program to start: narrowcast-run [flags] PROGRAM [arguments]");
}

TEST(LaunchFlags, OfASimulatedNetwork) {
  for (const std::string value : {"0", "-1", "nan", "1000", "0.0001"}) {
    expect_refused({"--simulate_gbit=" + value, "echo"},
                   "--simulate_gbit=" + value + ": must be from 0.001 to 100 Gbit/s");
  }
  for (const std::string flag : {"master_addr", "rdzv_endpoint", "rdzv_backend"}) {
    const std::string value = flag == "rdzv_backend" ? "static" : "127.0.0.1";
    expect_refused({"--simulate_gbit=1", "--" + flag + "=" + value, "echo"},
                   "--simulate_gbit and --" + flag +
                       " exclude each other: in a simulated network the launcher chooses where the workers meet");
  }
}

// These flags' values are checked by the functions that use them, which have tests of their own: machine_test.cpp,
// signal_descriptor_test.cpp, launch_plan_test.cpp.
TEST(LaunchFlags, EachHasAWrongValue) {
  const std::set<std::string> elsewhere = {"nproc_per_node", "signals_to_handle", "redirects", "tee"};
  std::set<std::string> tried = elsewhere;
  tried.insert("simulate_gbit");
  for (const WrongUse& use : wrong_uses()) {
    std::string name = use.flags[0].substr(2, use.flags[0].find('=') - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    tried.insert(name == "nono_python" ? "no_python" : name);
  }
  for (const program::FlagGroup& group : launch_description().groups) {
    for (const std::string& flag : group.flags) {
      EXPECT_TRUE(tried.contains(flag)) << flag;
    }
  }
  const LaunchRequest request =
      read_command({"--nproc_per_node=0", "--signals_to_handle=SIGNAL", "--redirects=4", "--tee=5", "echo"}).request;
  EXPECT_EQ(request.nproc_per_node, "0");
  EXPECT_EQ(request.signals_to_handle, "SIGNAL");
  EXPECT_EQ(request.redirects, "4");
  EXPECT_EQ(request.tee, "5");
}

TEST(LaunchFlags, ASecretThatOthersCanRead) {
  const testing::TemporaryFolder folder;
  const std::string secret = folder.write("secret", "what only this job knows");
  std::filesystem::permissions(secret, std::filesystem::perms(0644));
  expect_refused({"--secret_file=" + secret, "echo"},
                 "--secret_file: " + secret + ": other users may read or write it; run chmod 600");
}

}  // namespace
}  // namespace narrowcast::launcher
