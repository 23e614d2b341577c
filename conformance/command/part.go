// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/conformance/runtimes"
	"github.com/patchbay-net/patchbay/internal/apart"
)

// job is what a process in namespaces of its own does with one plugin or runtime. It gets the job as standard input.
type job struct {
	Runtime *runtimes.Options   `json:"runtime,omitempty"` // run the rules for runtimes, and nothing else
	Subject conformance.Subject `json:"subject"`
	Path    []string            `json:"path"` // CNI_PATH, with the plugin in its first directory; for a runtime, directories that it needs
	Ask     string              `json:"ask"`  // what to ask the plugin, instead of running rules: askAll or askVersions
	Only    []string            `json:"only"` // names of rules
	Beside  string              `json:"beside,omitempty"`
}

// These are values of job.Ask.
const (
	askAll      = "all"      // complete the subject
	askVersions = "versions" // of a complete subject, those that it leaves open
)

// answer is what that process prints.
type answer struct {
	Subject conformance.Subject `json:"subject"`
	Said    []string            `json:"said,omitempty"`
	Error   string              `json:"error,omitempty"`
	conformance.Findings
}

// do runs this program again in new namespaces, which does a job.
func (a *app) do(j job) (out answer, err error) {
	data, err := json.Marshal(j)
	if err != nil {
		return out, err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	cmd := apart.Command(ctx, []string{partName}, mark+"="+apart.Namespaces(), apart.Flags())
	var printed bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(data), &printed, a.stderr
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	var ended interface{ ExitCode() int }
	switch err := cmd.Run(); {
	case ctx.Err() != nil:
		return out, errors.New("interrupted")
	case errors.As(err, &ended): // it has said why
		return out, &failure{error: fmt.Errorf("the process in new namespaces: %w", err), code: exitUntold}
	case err != nil:
		return out, &failure{error: fmt.Errorf("make namespaces: %w", err), hint: apart.Hint(err, "/proc"), code: exitUntold}
	}
	if err := json.Unmarshal(printed.Bytes(), &out); err != nil {
		return out, fmt.Errorf("read what the process in new namespaces found: %w", err)
	}
	if out.Error != "" {
		f := &failure{error: fmt.Errorf("%s: %s", j.Subject.Type, out.Error), code: exitUntold}
		if j.Runtime == nil {
			f.hint = "--config FILE gives the plugin the configuration with which ADD works"
		}
		err = f
	}
	return out, err
}

// partName is a command that the help does not show.
const partName = "part"

// partCommand is the process in new namespaces.
type partCommand struct{ app *app }

// Execute does a job.
func (c *partCommand) Execute([]string) error {
	if err := apart.Check(mark, os.Getenv(mark)); err != nil {
		return err
	}
	var j job
	if err := json.NewDecoder(os.Stdin).Decode(&j); err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	if err := prepare(j.Path); err != nil {
		return err
	}
	if j.Runtime == nil { // a runtime's own children are its business
		kill, err := adopt()
		if err != nil {
			return err
		}
		defer kill()
	}
	stop, err := beside(j.Beside)
	if err != nil {
		return err
	}
	defer stop()
	out := answer{Subject: j.Subject}
	switch {
	case j.Runtime != nil:
		out.Outcomes, err = runtimes.Check(*j.Runtime)
	case j.Ask == askVersions:
		out.Subject, out.Said = conformance.Versions(j.Subject, j.Path)
	case j.Ask == askAll:
		out.Subject, out.Said, err = conformance.Probe(j.Subject, j.Path)
	default:
		out.Findings, err = conformance.Check(j.Subject, j.Path, conformance.Options{Only: j.Only})
	}
	if err != nil {
		out.Error = err.Error()
	}
	return json.NewEncoder(c.app.stdout).Encode(out)
}
