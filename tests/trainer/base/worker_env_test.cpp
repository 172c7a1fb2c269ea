#include <narrowcast/worker_env.h>

#include <gtest/gtest.h>

#include <cstdlib>

namespace narrowcast {
namespace {

TEST(ProcessEnvironmentTest, HoldsWhatThisProcessWasGiven) {
  ASSERT_EQ(setenv("NARROWCAST_WORKER_ENV_TEST", "a=b", 1), 0);
  EXPECT_EQ(process_environment().at("NARROWCAST_WORKER_ENV_TEST"), "a=b");
  ASSERT_EQ(unsetenv("NARROWCAST_WORKER_ENV_TEST"), 0);
  EXPECT_EQ(process_environment().count("NARROWCAST_WORKER_ENV_TEST"), 0u);
}

TEST(ProcessEnvironmentTest, NamesTheErrorFile) {
  ASSERT_EQ(setenv("TORCHELASTIC_ERROR_FILE", "/tmp/error.json", 1), 0);
  EXPECT_EQ(worker_error_file(), "/tmp/error.json");
  ASSERT_EQ(unsetenv("TORCHELASTIC_ERROR_FILE"), 0);
  EXPECT_EQ(worker_error_file(), "");
}

TEST(SessionEnvTest, ReadsWhatProgramsLookAt) {
  const SessionEnv env = SessionEnv::from_variables(
      {{"NO_COLOR", "1"}, {"OMP_NUM_THREADS", "4"}, {"TERM", "dumb"}, {"XDG_CACHE_HOME", "/cache"}, {"HOME", "/h"}});
  EXPECT_TRUE(env.no_color);
  EXPECT_TRUE(env.omp_num_threads_set);
  EXPECT_EQ(env.term, "dumb");
  EXPECT_EQ(env.cache_home, "/cache");
}

TEST(SessionEnvTest, HasDefaults) {
  const SessionEnv env = SessionEnv::from_variables({{"NO_COLOR", ""}, {"HOME", "/home/me"}});
  EXPECT_FALSE(env.no_color);
  EXPECT_FALSE(env.omp_num_threads_set);
  EXPECT_EQ(env.term, "");
  EXPECT_EQ(env.cache_home, "/home/me/.cache");
  EXPECT_EQ(SessionEnv::from_variables({}).cache_home, "");
}

}  // namespace
}  // namespace narrowcast
