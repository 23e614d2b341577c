// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"os"
	"regexp"
	"strconv"
	"testing"
)

// mapped returns the resident pages of files, in kB.
func mapped(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	n, _ := strconv.Atoi(string(regexp.MustCompile(`RssFile:\s+(\d+)`).FindSubmatch(status)[1]))
	return n
}

// After TrimMemory the process has fewer pages and still works.
func TestTrimMemory(t *testing.T) {
	text, err := os.ReadFile("/proc/self/exe") // puts the program into the kernel's cache
	if err != nil || len(text) == 0 {
		t.Fatal(err)
	}
	before := mapped(t)
	if err := TrimMemory("/proc"); err != nil {
		t.Fatal(err)
	}
	if after := mapped(t); after >= before {
		t.Errorf("%d kB of files were mapped, now %d", before, after)
	}
}

func TestParseMapping(t *testing.T) {
	for line, want := range map[string]mapping{
		"00400000-00d5b000 r-xp 00000000 fe:00 1234      /bin/patchbayd": {0x400000, 0xd5b000, false, "/bin/patchbayd"},
		"7f00-7f10 rw-p 00000000 00:00 0 ":                               {0x7f00, 0x7f10, true, ""},
	} {
		if got, ok := parseMapping(line); !ok || got != want {
			t.Errorf("%q: %+v, %v", line, got, ok)
		}
	}
	if _, ok := parseMapping("Rss:                  48 kB"); ok {
		t.Error("a value is no mapping")
	}
	for line, want := range map[string]bool{"Anonymous:             0 kB": true, "Anonymous:            10 kB": false, "AnonHugePages:         0 kB": false} {
		if unchanged(line) != want {
			t.Error(line)
		}
	}
}
