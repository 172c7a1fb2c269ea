#include "trainer/program/exit_code.h"

#include <c10/util/Exception.h>

#include <exception>
#include <iostream>
#include <string>

#include "ops/errors.h"

namespace narrowcast::program {
namespace {

// LibTorch appends a backtrace to what(); what users need is the first line of the message.
std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }

int report(std::string_view program, std::string_view message, ExitCode code) {
  std::cerr << first_line(std::string(program) + ": " + std::string(message)) << std::endl;
  return code;
}

}  // namespace

int run_program(std::string_view program, const std::function<int()>& body) {
  try {
    return body();
  } catch (const CorruptInputError& error) {
    return report(program, error.what_without_backtrace(), kCorruptInput);
  } catch (const c10::DistBackendError& error) {
    return report(program, error.what_without_backtrace(), kPeerFailed);
  } catch (const c10::DistError& error) {
    return report(program, error.what_without_backtrace(), kPeerFailed);
  } catch (const c10::ValueError& error) {
    return report(program, error.what_without_backtrace(), kWrongUse);
  } catch (const c10::TypeError& error) {
    return report(program, error.what_without_backtrace(), kWrongUse);
  } catch (const c10::Error& error) {
    return report(program, error.what_without_backtrace(), kInternalError);
  } catch (const std::exception& error) {
    return report(program, error.what(), kInternalError);
  }
}

}  // namespace narrowcast::program
