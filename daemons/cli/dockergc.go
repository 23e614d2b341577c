// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"path/filepath"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// gcFlags are the flags of `patchbayd docker gc`.
type gcFlags struct {
	Apply bool `long:"apply" description:"gc: remove what is dead; without it only show it"`
}

// collectMethod is a method that we add to Docker's protocol. gc calls it, because only the
// process that serves Docker may change the state.
const collectMethod = "Patchbay.Collect"

func collector(d *docker.Driver) cnm.Method {
	return func(ctx context.Context, body []byte) (any, error) {
		var in docker.Collection
		if err := json.Unmarshal(body, &in); err != nil {
			return nil, fmt.Errorf("decode request: %w", err)
		}
		return d.Collect(ctx, in), nil
	}
}

// collect asks the running driver what is dead, and to remove it with --apply. If no driver runs,
// collect does it itself.
func (c *dockerCommand) collect(w io.Writer) error {
	if c.Timeout <= 0 || c.Grace < 0 {
		return errors.New("timeout must be more than 0, and grace must not be negative")
	}
	if !state.Used(paths.Default().State, "docker") {
		return c.show(w, nil)
	}
	out, err := c.collectLocally()
	if errors.Is(err, unix.EWOULDBLOCK) { // a driver is running, or has just started
		out, err = c.collectInDriver()
	}
	if err != nil {
		return err
	}
	if out.NotAsked != "" {
		c.app.print("warning", errors.New(out.NotAsked))
	}
	if out.Failed != "" {
		err = errors.New(out.Failed)
	}
	return errors.Join(err, c.show(w, out.Items))
}

func (c *dockerCommand) collection() docker.Collection {
	return docker.Collection{Grace: c.Grace, Apply: c.GC.Apply, Dry: !c.GC.Apply}
}

func (c *dockerCommand) collectLocally() (*docker.Collected, error) {
	d, err := c.driver(log.New(io.Discard, "", 0))
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(paths.Default().State, "docker")
	unlock, err := lockState(c.app.ctx, dir, 0)
	if err != nil {
		return nil, err
	}
	defer unlock()
	ctx, done := untilDriver(c.app.ctx, dir)
	defer done(nil)
	out := d.Collect(ctx, c.collection())
	if err := context.Cause(ctx); errors.Is(err, unix.EWOULDBLOCK) {
		return nil, err
	}
	return out, nil
}

func (c *dockerCommand) collectInDriver() (*docker.Collected, error) {
	client, err := cnm.NewClient(cnm.DriverAddr{Name: "patchbayd docker", URL: "unix://" + c.Socket}, cnm.ClientOptions{Timeout: 2 * c.Timeout, Patience: gcTime})
	if err != nil {
		return nil, err
	}
	out := new(docker.Collected)
	return out, client.Call(c.app.ctx, collectMethod, c.collection(), out)
}

func (c *dockerCommand) show(w io.Writer, list []docker.Item) error {
	if c.JSON {
		if list == nil {
			list = []docker.Item{}
		}
		return json.NewEncoder(w).Encode(list)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "nothing is left over")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "STATE\tKIND\tNAME\tWHY") //nolint:errcheck // Flush reports the error
	for _, i := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", c.stateOf(i), i.Kind, i.Name, cmp.Or(i.Error, i.Why)) //nolint:errcheck // as above
	}
	return t.Flush()
}

// stateOf uses the words of `patchbay gc`.
func (c *dockerCommand) stateOf(i docker.Item) string {
	switch {
	case i.Removed:
		return "removed"
	case i.State == life.Dead.String() && !c.GC.Apply:
		return "would be removed"
	}
	return i.State
}
