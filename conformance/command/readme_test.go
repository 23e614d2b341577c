// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/docpage"
)

// mistakes are what the author of a shell plugin did wrong, compared with that of examples/.
var mistakes = []struct{ right, wrong string }{
	{`"gateway":"%s.1"}]}' "$version"`, `"gateway":"%s.1"}]}' 1.1.0`},
	{`valid "$CNI_CONTAINERID" || fail 4 "invalid characters in containerID"`, `:`},
	{`[ -n "$(get "$key")" ] || return 0`, `:`},
}

// The author has no Go, types the two commands of README, and learns of these mistakes and of no others.
// testdata/readme.transcript is the transcript.
func TestReadme(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, program)); err != nil {
		t.Fatal(err)
	}
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	put("my-plugin", mistaken(t))
	put("my.conf", `{"cniVersion": "1.1.0", "name": "office", "type": "my-plugin", "ipam": {"type": "my-plugin", "prefix": "10.44.0"}}`)

	cmd := exec.Command("sh", "-c", twoCommands(t))
	cmd.Dir, cmd.Env = dir, []string{"PATH=" + dir + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != exitFailed {
		t.Fatalf("%v, want the exit status %d\n%s", err, exitFailed, out)
	}
	transcript := docpage.Step{Prints: strings.Split(strings.TrimSpace(text(t, "testdata/readme.transcript")), "\n")}
	if !transcript.Matches(string(out)) || strings.Count(string(out), "FAIL") != len(mistakes) {
		t.Errorf("it printed another transcript than testdata/readme.transcript:\n%s", out)
	}
}

// mistaken is the shell plugin of examples/ with the mistakes.
func mistaken(t *testing.T) string {
	t.Helper()
	plugin := text(t, "../../examples/sh-ipam/sh-ipam")
	for _, m := range mistakes {
		if strings.Count(plugin, m.right) != 1 {
			t.Fatalf("sh-ipam has %q not once", m.right)
		}
		plugin = strings.Replace(plugin, m.right, m.wrong, 1)
	}
	return plugin
}

// twoCommands are those of README.
func twoCommands(t *testing.T) string {
	t.Helper()
	var commands []string
	for line := range strings.Lines(text(t, "../../README.md")) {
		if strings.HasPrefix(line, program+" ") {
			commands = append(commands, line)
		}
	}
	if len(commands) != 2 {
		t.Fatalf("README has %d commands of %s, want 2", len(commands), program)
	}
	return strings.Join(commands, "")
}

func text(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
