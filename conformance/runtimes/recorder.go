// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/spec"
)

// recorders are the types of the plugins: a program of such a name is a recorder.
var recorders = []string{"recorder-1", "recorder-2", "recorder-3"}

// The recorders find these files beside the directory that they are in.
const (
	callsFile   = "calls"   // what they noted, a line for each event
	ordersFile  = "orders"  // what they do, a JSON object such as {"recorder-2 ADD": "fail"}
	releaseFile = "release" // ends those that hang
)

// An order makes a recorder misbehave.
const (
	orderFail    = "fail"    // it prints an error object
	orderGarbage = "garbage" // it succeeds and prints no JSON
	orderEmpty   = "empty"   // it succeeds and prints nothing
	orderGarbled = "garbled" // it fails and prints no JSON
	orderDie     = "die"     // a signal ends it
	orderNoise   = "noise"   // it writes much to standard error
	orderOlder   = "older"   // it prints a result of an older version
	orderHang    = "hang"    // it does not end
)

// failText is the message of a recorder that fails on order.
const failText = "the recorder fails on order"

// noiseKey is in what a recorder writes to standard error, which is JSON, too.
const noiseKey = "noise"

// mostDescriptors is where the search for open files ends: a process seldom has more.
const mostDescriptors = 1024

// longestHang is how long a recorder hangs if the suite does not release it.
const longestHang = 5 * time.Minute

// event is one line of the recorders' notes. A call has up to three: a recorder may be killed at any time.
type event struct {
	PID  int    `json:"pid"`
	What string `json:"what"` // begin, read or end

	Plugin      string   `json:"plugin,omitempty"`
	Verb        string   `json:"verb,omitempty"`
	Env         []string `json:"env,omitempty"`         // the variables of CNI, as K=V
	Descriptors []string `json:"descriptors,omitempty"` // inherited, besides the three
	NetNS       string   `json:"netns,omitempty"`       // identity of the file CNI_NETNS

	Stdin  string `json:"stdin,omitempty"`
	Stdout string `json:"stdout,omitempty"`
	Exit   int    `json:"exit,omitempty"`
}

// Recorder reports whether a program that was started under this name is a recorder.
func Recorder(name string) bool { return slices.Contains(recorders, filepath.Base(name)) }

// Record is the main function of a recorder. It returns the exit status.
func Record() int {
	inherited := descriptors() // before this process opens any
	e := event{
		PID: os.Getpid(), What: "begin", Plugin: filepath.Base(os.Args[0]), Verb: os.Getenv("CNI_COMMAND"),
		Descriptors: inherited, NetNS: identity(os.Getenv("CNI_NETNS")),
	}
	for _, kv := range os.Environ() {
		if strings.HasPrefix(kv, "CNI_") {
			e.Env = append(e.Env, kv)
		}
	}
	dir := recorderDir()
	note(dir, &e)
	stdin, _ := io.ReadAll(os.Stdin) // what could be read is judged
	note(dir, &event{PID: e.PID, What: "read", Stdin: string(stdin)})
	stdout, exit := answer(dir, &e, stdin)
	note(dir, &event{PID: e.PID, What: "end", Stdout: stdout, Exit: exit})
	fmt.Print(stdout) // a runtime that was killed reads nothing
	return exit
}

// recorderDir is the directory above the plugins.
func recorderDir() string {
	dir := filepath.Dir(os.Args[0])
	if !strings.Contains(os.Args[0], "/") { // the runtime shortened the name
		dir, _, _ = strings.Cut(os.Getenv("CNI_PATH"), ":")
	}
	return filepath.Dir(dir)
}

// descriptors lists the open files that this process got from the runtime. What a program opens itself, as Go's runtime does,
// closes on exec.
func descriptors() (list []string) {
	for fd := 3; fd < mostDescriptors; fd++ {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue
		}
		buf := make([]byte, 200)
		n, _ := unix.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd), buf) // without /proc the number remains
		list = append(list, fmt.Sprintf("%d %s", fd, buf[:max(n, 0)]))
	}
	return list
}

// closeOnExec keeps the open files of the program that started the suite from the plugins.
func closeOnExec() {
	for fd := 3; fd < mostDescriptors; fd++ {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC) // most are not open
	}
}

// identity is the same for two paths of one file. It is empty if there is none.
func identity(path string) string {
	var st unix.Stat_t
	if path == "" || unix.Stat(path, &st) != nil {
		return ""
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// note appends an event in one write, so that recorders that run at the same time do not mix their lines.
func note(dir string, e *event) {
	line, _ := json.Marshal(e) // it has only texts and numbers
	f, err := os.OpenFile(filepath.Join(dir, callsFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, "recorder:", err)
		return
	}
	defer f.Close()                    //nolint:errcheck // written
	_, _ = f.Write(append(line, '\n')) // a call that is missing is found
}

// answer does what the order for this call says.
func answer(dir string, e *event, stdin []byte) (stdout string, exit int) {
	conf := struct {
		Version string          `json:"cniVersion"`
		Prev    json.RawMessage `json:"prevResult"`
	}{}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return errorObject("", spec.CodeDecoding, err.Error()), 1
	}
	orders := map[string]string{}
	if data, err := os.ReadFile(filepath.Join(dir, ordersFile)); err == nil {
		_ = json.Unmarshal(data, &orders) // the suite wrote it
	}
	version := conf.Version
	switch orders[e.Plugin+" "+e.Verb] {
	case orderFail:
		return errorObject(conf.Version, 100, failText), 1
	case orderGarbage:
		return "this is no JSON\n", 0
	case orderEmpty:
		return "", 0
	case orderGarbled:
		return "this is no JSON\n", 1
	case orderDie:
		_ = unix.Kill(os.Getpid(), unix.SIGKILL) // it cannot fail
		time.Sleep(time.Minute)
	case orderHang:
		hang(filepath.Join(dir, releaseFile))
	case orderNoise:
		_, _ = os.Stderr.Write(bytes.Repeat([]byte(`{"`+noiseKey+`": "of a plugin"}`+"\n"), 1<<15)) // who reads it is the runtime's affair
	case orderOlder:
		version = olderVersion
	}
	switch spec.Verb(e.Verb) {
	case spec.Add:
		return result(e.Plugin, version, conf.Prev), 0
	case spec.Version:
		versions, _ := json.Marshal(spec.Versions()) // a list of texts
		return fmt.Sprintf(`{"cniVersion": %q, "supportedVersions": %s}`, conf.Version, versions), 0
	}
	return "", 0
}

func errorObject(version string, code spec.Code, msg string) string {
	return fmt.Sprintf(`{"cniVersion": %q, "code": %d, "msg": %q}`, version, code, msg)
}

// hang waits for a file.
func hang(release string) {
	for end := time.Now().Add(longestHang); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(release); err == nil {
			return
		}
	}
}

// result is that of the plugin before, and an interface with this plugin's name. The first gives the container's interface, with an
// address, which containerd looks for.
func result(plugin, version string, prev json.RawMessage) string {
	out, name := map[string]any{}, plugin
	if len(prev) > 0 {
		_ = json.Unmarshal(prev, &out) // what cannot be read is not passed on, and is found
	} else {
		ip := map[string]any{"address": "10.7.0.2/24", "interface": 0}
		if spec.Compare(version, "1.0.0") < 0 {
			ip["version"] = "4"
		}
		out["ips"], name = []any{ip}, os.Getenv("CNI_IFNAME")
	}
	list, _ := out["interfaces"].([]any) // the first has none
	out["cniVersion"] = version
	out["interfaces"] = append(list, map[string]any{"name": name, "mac": "02:00:00:00:00:07", "sandbox": os.Getenv("CNI_NETNS")})
	data, _ := json.Marshal(out) // it was JSON
	return string(data)
}
