// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"bufio"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// TrimMemory gives memory back that only the start of a process needed: free memory of the
// heap, and pages of the program, because initialisation touches nearly all of them. If a page
// is used again, the kernel maps it from its cache.
func TrimMemory(proc string) error {
	debug.FreeOSMemory()
	program, err := os.Readlink(proc + "/self/exe")
	if err != nil {
		return err
	}
	maps, err := os.Open(proc + "/self/smaps")
	if err != nil {
		return err
	}
	defer maps.Close() //nolint:errcheck // read only
	var m mapping
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if next, ok := parseMapping(lines.Text()); ok {
			m = next
		}
		if m.file != program || m.writable || !unchanged(lines.Text()) {
			continue
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.from, m.to-m.from, unix.MADV_DONTNEED); errno != 0 {
			return errno
		}
	}
	return nil
}

// mapping is one memory mapping of a process (proc_pid_maps(5)).
type mapping struct {
	from, to uintptr
	writable bool
	file     string
}

func parseMapping(line string) (m mapping, ok bool) {
	var may, offset, device, inode string
	n, _ := fmt.Sscanf(line, "%x-%x %s %s %s %s %s", &m.from, &m.to, &may, &offset, &device, &inode, &m.file)
	m.writable = strings.Contains(may, "w")
	return m, n >= 6 //nolint:mnd // all but the file
}

// unchanged reports whether a line of smaps says that a mapping has no pages of the process's own.
// A loader's relocations are such pages.
func unchanged(line string) bool {
	f := strings.Fields(line)
	return len(f) == 3 && f[0] == "Anonymous:" && f[1] == "0"
}
