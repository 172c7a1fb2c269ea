#include "tests/programs/running_program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <stdexcept>

#include "tests/support/is_running.h"
#include "tests/support/patience.h"

namespace narrowcast::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kDeadline{120};

std::map<std::string, std::string> changed_environment(const std::map<std::string, std::string>& changes) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    variables.emplace(text.substr(0, text.find('=')), text.substr(text.find('=') + 1));
  }
  variables["CUDA_VISIBLE_DEVICES"] = "-1";
  for (const auto& [name, value] : changes) {
    variables.erase(name);
    if (!value.empty()) {
      variables.emplace(name, value);
    }
  }
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

// Appends the available output of `pipe`; at its end, closes it and sets it to -1.
void drain(int& pipe, std::string& text) {
  char bytes[1 << 14];
  const ssize_t count = read(pipe, bytes, sizeof(bytes));
  if (count > 0) {
    text.append(bytes, static_cast<size_t>(count));
  } else {
    close(pipe);
    pipe = -1;
  }
}

}  // namespace

RunningProgram::RunningProgram(const std::vector<std::string>& arguments,
                               const std::map<std::string, std::string>& environment) {
  std::vector<std::string> words = arguments;
  std::vector<std::string> assignments;
  for (const auto& [name, value] : changed_environment(environment)) {
    assignments.push_back(name + "=" + value);
  }
  int out[2];
  int err[2];
  if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
    throw std::runtime_error("pipe2");
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  const int error = posix_spawnp(&pid_, words[0].c_str(), &actions, nullptr, pointers_to(words).data(),
                                 pointers_to(assignments).data());
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  output_pipe_ = out[0];
  error_pipe_ = err[0];
  if (error != 0) {
    throw std::runtime_error(words[0] + ": " + std::strerror(error));
  }
}

RunningProgram::~RunningProgram() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close_output();
  if (error_pipe_ >= 0) {
    close(error_pipe_);
  }
}

void RunningProgram::send(int signal) const { kill(pid_, signal); }

void RunningProgram::close_output() {
  if (output_pipe_ >= 0) {
    close(output_pipe_);
    output_pipe_ = -1;
  }
}

void RunningProgram::read_until(const std::function<bool()>& enough) {
  const auto deadline = Clock::now() + kDeadline;
  while (!enough() && (output_pipe_ >= 0 || error_pipe_ >= 0)) {
    pollfd polls[2] = {{output_pipe_, POLLIN, 0}, {error_pipe_, POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0 || poll(polls, 2, static_cast<int>(left.count())) == 0) {
      throw std::runtime_error("timed out; output so far:\n" + output_ + "\nerrors so far:\n" + errors_);
    }
    if (polls[0].revents != 0) {
      drain(output_pipe_, output_);
    }
    if (polls[1].revents != 0) {
      drain(error_pipe_, errors_);
    }
  }
}

void RunningProgram::wait_for_output(const std::string& text, int times) {
  read_until([&] { return count_of(text, output_) >= times; });
  if (count_of(text, output_) < times) {
    throw std::runtime_error("ended without output \"" + text + "\":\n" + output_ + "\nerrors:\n" + errors_);
  }
}

void RunningProgram::wait_for_errors(const std::string& text, int times) {
  read_until([&] { return count_of(text, errors_) >= times; });
  if (count_of(text, errors_) < times) {
    throw std::runtime_error("ended without error output \"" + text + "\":\n" + errors_);
  }
}

void RunningProgram::wait_for_either(const std::string& error_text, const std::string& output_text) {
  const auto seen = [&] { return count_of(error_text, errors_) > 0 || count_of(output_text, output_) > 0; };
  read_until(seen);
  if (!seen()) {
    throw std::runtime_error("ended without \"" + error_text + "\" or \"" + output_text + "\":\n" + output_ +
                             "\nerrors:\n" + errors_);
  }
}

ProgramEnd RunningProgram::wait() {
  read_until([] { return false; });
  int status = 0;
  if (waitpid(pid_, &status, 0) != pid_) {
    throw std::runtime_error(std::string("waitpid: ") + std::strerror(errno));
  }
  pid_ = 0;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, WIFSIGNALED(status) ? WTERMSIG(status) : 0, output_, errors_};
}

ProgramEnd run_to_end(const std::vector<std::string>& arguments,
                      const std::map<std::string, std::string>& environment) {
  return RunningProgram(arguments, environment).wait();
}

int count_of(const std::string& part, const std::string& text) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) {
    ++count;
  }
  return count;
}

void wait_until(const std::function<bool()>& condition) {
  const auto deadline = Clock::now() + kDeadline;
  while (!condition()) {
    if (Clock::now() > deadline) throw std::runtime_error("timed out");
    pause_between_looks();
  }
}

void wait_until_gone(pid_t pid) {
  for (const auto deadline = Clock::now() + kDeadline; Clock::now() < deadline; pause_between_looks()) {
    if (!is_running(pid)) {
      return;
    }
  }
  throw std::runtime_error("process " + std::to_string(pid) + " still runs");
}

}  // namespace narrowcast::testing
