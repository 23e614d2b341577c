// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docpage

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const example = `# A page

~~~json title=/etc/cni/net.d/x.conflist
{"name": "x"}
~~~

Then run ` + "`docker ps`" + `:

~~~console
# docker run \
    -d busybox
# docker ps
ID  NAME
8a65f2c1d0e4  web
~~~

~~~text
nothing to run
~~~
`

func ticks(s string) string { return strings.ReplaceAll(s, "~~~", fence) }

func TestParse(t *testing.T) {
	got, err := Parse(ticks(example))
	if err != nil {
		t.Fatal(err)
	}
	want := []Step{
		{Line: 4, File: "/etc/cni/net.d/x.conflist", Text: "{\"name\": \"x\"}\n"},
		{Line: 10, Command: "docker run \\\n    -d busybox"},
		{Line: 12, Command: "docker ps", Prints: []string{"ID  NAME", "8a65f2c1d0e4  web"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// A command that no test would run is an error, whatever the name of its block.
func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"~~~text\ndocker network ls\n~~~":     "line 2",
		"x\n~~~\n$ bin/patchbayd docker\n~~~": "line 3",
		"~~~sh\nanything\n~~~":                "is not run",
		"~~~console\nnot a command\n~~~":      "before any command",
		"~~~console\n# true\n":                "does not end",
	} {
		if _, err := Parse(ticks(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestMatches(t *testing.T) {
	for _, tc := range []struct {
		shown, printed string
		want           bool
	}{
		{"ENDPOINT  NAME\n8a65f2c1d0e4  web", "ENDPOINT      NAME\n0123456789ab  web\n", true},
		{"8a65f2c1d0e4  web", "0123456789ab  db", false},
		{"*:8080->80/tcp, *:49312->80/tcp", "*:8080->80/tcp, *:32768->80/tcp", true},
		{"*:8080->80/tcp", "*:8081->80/tcp", false},
		{"inet 10.1.0.2/16 … eth0", "inet 10.1.0.2/16 brd 10.1.255.255 scope global eth0", true},
		{"first\n…\nlast", "first\na\nb\nlast", true},
		{"first\n…\nlast\n…", "first\nlast", true},
		{"link/ether 02:42:0a:5b:00:4d", "link/ether 9e:00:00:00:00:01", true},
		{"one line", "one line\nanother", false},
	} {
		s := Step{Prints: strings.Split(tc.shown, "\n")}
		if got := s.Matches(tc.printed); got != tc.want {
			t.Errorf("%q shows %q: %v (%s)", tc.printed, tc.shown, got, s.pattern())
		}
	}
	if !(Step{}).Matches("anything") {
		t.Error("what is not shown is not compared")
	}
}

// The pages that test/e2e/docs runs can be parsed; this test needs no root.
func TestPagesCanBeRead(t *testing.T) {
	for _, name := range append(Tested[:], Readme[:]...) {
		text, err := os.ReadFile("../../../" + name)
		if err != nil {
			t.Fatal(err)
		}
		if steps, err := Parse(string(text)); err != nil || len(steps) == 0 {
			t.Errorf("%s: %d steps, %v", name, len(steps), err)
		}
	}
}
