// English prose that a Debian machine can have: the King James Bible of the package bible-kjv.
#pragma once
#include <string>

#include "base/file.h"

namespace trireme {

// Writes each chapter to a file of the folder, a verse a line: Ge001.txt to Re022.txt, 4.2 MB in all. Files
// that are there already are replaced.
// command: prints all verses as "Ge1:1 In the beginning ...", one a line.
// Returns false, with nothing written, if the command is not there or prints other text.
bool write_king_james(const fs::path& folder,
                      const std::string& command = "bible -f gen1:1-rev22:21 2>/dev/null");

}  // namespace trireme
