// Mapped files that become shorter, or whose disk fails, while they are read.
//
// A read beyond the new end, or of a page that cannot be had, raises SIGBUS, which has no file name. The
// table maps addresses to names, and is readable from a signal handler: fixed size, no locks.
#pragma once
#include <cstddef>
#include <filesystem>

namespace trireme {

// Called by MappedFile. Beyond the table's size mappings have no name.
void add_mapping(const std::byte* begin, size_t bytes, const std::filesystem::path&);
void remove_mapping(const std::byte* begin);

// Installs the SIGBUS handler of the process: one line with the file's name, then exit code 1, or 4 if the
// file still has that byte (an error of the disk). A SIGBUS at any other address ends the process as before.
void report_shrunk_files();

}  // namespace trireme
