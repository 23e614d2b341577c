// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/probe"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/terminal"
	"github.com/patchbay-net/patchbay/internal/trace"
)

const traceLong = `Send the packet of a question of "patchbay trace", and print where it ends.
patchbay finds the ends of the packet, asks the network policies, and runs this
command, because it has no room for it. Use patchbay trace.`

// exitUndecided is the status of patchbay trace if the answer is not known. Status 1 is an answer.
const exitUndecided = 2

// maxQuestion is the longest question: some hundred bytes for each container of a node.
const maxQuestion = 16 << 20

type traceCommand struct {
	JSON bool `long:"json" description:"print a JSON object"`
}

// Execute reads the question from standard input.
func (c *traceCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	r, err := traced(os.Stdin)
	if err != nil {
		return statusError{err, exitUndecided}
	}
	text := printableLines(r.Text())
	if c.JSON {
		var b strings.Builder
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "    ")
		if err := enc.Encode(r); err != nil {
			return err
		}
		text = b.String()
	}
	if _, err := io.WriteString(os.Stdout, text); err != nil {
		return err
	}
	if r.Verdict == trace.Ends || r.Verdict == trace.Refused {
		return statusError{nil, 1}
	}
	return nil
}

func traced(in io.Reader) (*trace.Report, error) {
	var q trace.Question
	if err := json.NewDecoder(io.LimitReader(in, maxQuestion)).Decode(&q); err != nil {
		return nil, fmt.Errorf("read the question: %w; use patchbay trace", err)
	}
	alone, err := onlyTrace()
	if err != nil {
		return nil, err
	}
	defer unix.Close(alone) //nolint:errcheck // it only has a name
	return probe.Host{Proc: paths.Default().Proc}.Trace(q)
}

// onlyTrace returns a socket whose name only one process of the host's namespace can have.
func onlyTrace() (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, err
	}
	err = unix.Bind(fd, &unix.SockaddrUnix{Name: "@patchbay-trace"})
	if errors.Is(err, unix.EADDRINUSE) {
		err = errors.New("another trace runs on this node: wait some seconds")
	}
	if err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// printableLines removes from each line what a terminal would not print: comments of rules come from other programs.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = terminal.Printable(lines[i])
	}
	return strings.Join(lines, "\n")
}
