// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package refuse

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// asProgram makes this test binary run the command line.
const asProgram = "PATCHBAY_REFUSE_PROGRAM=1"

// mistake is a command line that must be refused.
type mistake struct {
	args   string // separated by blanks
	env    string
	status int
	msg    string // on standard error, or with --json on standard output
}

// mistakes are refused before anything changes. Exit status 2 is a mistake on the command line.
// Status 125 is a run that could not start its command. Any other failure is 1.
var mistakes = []mistake{
	{args: "nonsense", status: 2, msg: "error: no command \"nonsense\""},
	{args: "add", status: 2, msg: `the required arguments "NETWORK" and "NETNS" were not provided`},
	{args: "add pods", status: 2, msg: `the required argument "NETNS" was not provided`},
	{args: "add pods refuse more", status: 2, msg: `unexpected argument "more"`},
	{args: "add --nonsense pods refuse", status: 2, msg: `unknown flag "nonsense"`},
	{args: "add nowhere refuse", status: 1, msg: `no network "nowhere"; available: pods, patchbay (built in)`},
	{args: "add ./missing.conflist refuse", status: 1, msg: "no such file or directory"},
	{args: "add ./broken.conflist refuse", status: 1, msg: "./broken.conflist:1:9: unexpected end of the file"},
	{args: "add ./empty.conflist refuse", status: 1, msg: "no plugins in list"},
	{args: "add pods nowhere", status: 1, msg: `failed to open netns "/run/netns/nowhere"`},
	{args: "add pods /etc/passwd", status: 1, msg: `failed to open netns "/etc/passwd"`},
	{args: "add --id ../x pods refuse", status: 2, msg: "invalid characters in containerID"},
	{args: "add --id= pods refuse", status: 2, msg: "--id is empty"},
	{args: "add --ifname a/b pods refuse", status: 2, msg: "interface name contains / or :"},
	{args: "add --ifname sixteen-letters- pods refuse", status: 2, msg: "interface name is too long"},
	{args: "add --json --ifname a/b pods refuse", status: 2, msg: `"code": 4`},
	{args: "add -p 80 pods refuse", status: 2, msg: "--publish 80: the host's port is missing"},
	{args: "add -p 65536:80 pods refuse", status: 2, msg: "a port is a number from 1 to 65535"},
	{args: "add -p x:80:80 pods refuse", status: 2, msg: "the host's address is not an IP address"},
	{args: "add -p 80:80/icmp pods refuse", status: 2, msg: "the protocol is tcp, udp or sctp"},
	{args: "add -p 80:80 pods refuse", status: 1, msg: "no plugin declares the capability portMappings"},
	{args: "add --ip 10.1.1 pods refuse", status: 2, msg: "--ip 10.1.1"},
	{args: "add --mac 02:00 pods refuse", status: 2, msg: "--mac 02:00: want six bytes"},
	{args: "add pods refuse", env: "CNI_ARGS=nonsense", status: 1, msg: "ARGS: invalid pair"},
	{args: "add pods refuse", env: "CAP_ARGS=[]", status: 1, msg: "read CAP_ARGS"},
	{args: "add pods refuse", env: "NETCONFPATH=/nonexistent", status: 1, msg: `no network "pods"; available: patchbay (built in)`},
	{args: "check pods refuse", status: 1, msg: "pods/refuse: no result of its ADD is below"},
	{args: "del nowhere refuse", status: 1, msg: `no network "nowhere"; available: pods, patchbay (built in)`},
	{args: "gc --all --valid a/b pods", status: 2, msg: "--all and --valid exclude each other"},
	{args: "gc --valid a/../b pods", status: 2, msg: "--valid a/../b"},
	{args: "status nowhere", status: 1, msg: `no network "nowhere"; available: pods, patchbay (built in)`},
	{args: "network show nowhere", status: 1, msg: `no network "nowhere"; available: pods, patchbay (built in)`},
	{args: "network validate ./broken.conflist", status: 1, msg: "./broken.conflist:1:9: unexpected end of the file"},
	{args: "explain --id ../x pods", status: 2, msg: "--id ../x: invalid characters in containerID"},
	{args: "explain --ifname a/b pods", status: 2, msg: "--ifname a/b: interface name contains / or :"},
	{args: "explain nowhere", status: 1, msg: `no network "nowhere"; available: pods, patchbay (built in)`},
	{args: "run", status: 2, msg: "the required argument"},
	{args: "run --network nowhere -- true", status: 125, msg: `no network "nowhere"; available: pods, patchbay (built in)`},
	{args: "run --network pods --network nowhere -- true", status: 125, msg: `no network "nowhere"; available: pods, patchbay (built in)`},
	{args: "run --ifname a --ifname b -- true", status: 2, msg: "2 names of interfaces for 1 networks"},
	{args: "convert ./broken.conflist", status: 1, msg: "convert ./broken.conflist: 1:9: unexpected end of the file"},
	{args: "convert ./missing.conflist", status: 1, msg: "no such file or directory"},
	{args: "install", status: 2, msg: `the required argument "DIR" was not provided`},
	{args: "install typo/bin", status: 1, msg: "there is no directory typo"},
	{args: "install --only nonsense bin", status: 2, msg: `no built-in plugin "nonsense"`},
	{args: "install --restore before --backup after bin", status: 2, msg: "--restore goes with --force and --podman only"},
	{args: "plugin help nonsense", status: 2, msg: `no built-in plugin "nonsense"`},
	{args: "completion csh", status: 2, msg: `no completion for shell "csh"`},
	{args: "demo more", status: 2, msg: `unexpected argument "more"`},
	{args: "demo", env: "PATCHBAY_DEMO_INSIDE=1", status: 1, msg: "must not be set by hand"},
}

// TestCommandLine checks exit status and message. Standard output must be empty, except for a
// --json error. The node and the directory must not change.
func TestCommandLine(t *testing.T) {
	runtime.LockOSThread() // /proc/thread-self is the namespace of the test
	defer runtime.UnlockOSThread()
	nettest.NewNS(t, "refuse")
	dir := t.TempDir()
	for name, text := range map[string]string{
		"net.d/pods.conflist": `{"cniVersion":"1.0.0","name":"pods","plugins":[{` + valid["bridge"] + `,"type":"bridge"}]}`,
		"broken.conflist":     `{"name":`,
		"empty.conflist":      `{"cniVersion":"1.0.0","name":"empty","plugins":[]}`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dirs := append(leak.Dirs(), dir)
	before := leak.Must(t, dirs...)
	for _, m := range mistakes {
		m.hold(t, dir)
		if left := leak.Must(t, dirs...).Beyond(before).Without(standing); len(left) > 0 {
			t.Fatalf("patchbay %s: left\n%s", m.args, left)
		}
	}
}

// standing reports whether a line is one of the runtime's lock files, which every operation
// shares.
func standing(line string) bool { return strings.HasPrefix(line, "file /run/patchbay/locks/") }

func (m mistake) hold(t *testing.T, dir string) {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd := exec.Command("/proc/self/exe", strings.Fields(m.args)...)
	cmd.Env = append(os.Environ(), asProgram, "NETCONFPATH="+filepath.Join(dir, "net.d"), "CNI_PATH=/nonexistent")
	if m.env != "" {
		cmd.Env = append(cmd.Env, m.env)
	}
	cmd.Args[0], cmd.Dir, cmd.Stdout, cmd.Stderr = "patchbay", dir, &stdout, &stderr
	err := cmd.Run()
	var ended *exec.ExitError
	if !errors.As(err, &ended) || ended.ExitCode() != m.status {
		t.Errorf("patchbay %s: %v, want exit status %d\n%s", m.args, err, m.status, &stderr)
	}
	if !strings.Contains(stderr.String()+stdout.String(), m.msg) || !strings.Contains(stderr.String(), "patchbay: error: ") {
		t.Errorf("patchbay %s: want %q in\n%s%s", m.args, m.msg, &stdout, &stderr)
	}
	if isJSON := strings.Contains(m.args, "--json"); isJSON == (stdout.Len() == 0) {
		t.Errorf("patchbay %s: on standard output: %q", m.args, &stdout)
	}
}
