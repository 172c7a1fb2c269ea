// Flushes the standard streams, the last work of a program before its main function ends the process.
#pragma once

namespace narrowcast::program {

// Writes what standard output and error still hold. A main function then ends the process by std::_Exit, so that no
// destructors of static objects run: LibTorch's take 0.1 s of processor time, in which they remove the operators from
// its tables one by one.
void flush_streams();

}  // namespace narrowcast::program
