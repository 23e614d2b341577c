// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const explainLong = `Print what an ADD to NETWORK (a name, or a FILE) would make sure of, and the
result it would return. A line is in the syntax of ip, tc or nft, or names what
the firewall would do; what exists already stays as it is. Nothing is changed:
every plugin only prints the state that it wants, and finds a free address
without reserving it. This works only with built-in plugins.

For a Kubernetes pod of this node, print what its ADD made, with the addresses
and ports that it has, and compare that with the kernel. A line that differs is
marked, and the exit status is 1.

For a Service of this node, by its name or an address of it, print the elements
that the kernel has. If the agent keeps a copy of its Services, compare them
with it, as for a pod.

  patchbay explain mynet
  patchbay explain default/web-0
  patchbay explain svc/default/web`

type explainCommand struct {
	app    *app
	ID     string `long:"id" value-name:"ID" default:"example" description:"container id"`
	IfName string `long:"ifname" short:"i" value-name:"NAME" env:"CNI_IFNAME" default:"eth0" description:"name of the interface in the container"`
	NetNS  nsName `long:"netns" value-name:"NETNS" description:"namespace to attach (a new, empty one)"`
	JSON   bool   `long:"json" description:"print a JSON object"`
	capabilityFlags
	Args struct {
		Network networkName `positional-arg-name:"NETWORK|FILE|NAMESPACE/POD|SERVICE" required:"1"`
	} `positional-args:"yes"`
}

// explainInside is set in the environment of the second process that explain starts for an
// ordinary user. That process has its own user namespace, in which it may create and enter
// network namespaces. In place of the machine's namespace it has a new one, because it could not
// return to the machine's.
const explainInside = "PATCHBAY_EXPLAIN_INSIDE"

// explanation is what explain prints.
type explanation struct {
	Network string         `json:"network"`
	Plugins []*pluginSteps `json:"plugins"`
	Result  any            `json:"result"`
}

// pluginSteps lists what one plugin would do.
type pluginSteps struct {
	Type  string   `json:"type"`
	State []string `json:"state"`
}

// Execute runs an ADD with the same runtime as a real one, but the plugins print their steps and
// do not carry them out.
func (c *explainCommand) Execute([]string) error {
	if target, ok := serviceNamed(string(c.Args.Network)); ok {
		return c.service(target)
	}
	if pod := string(c.Args.Network); podNamed(pod) {
		return c.pod(pod)
	}
	if err := wellNamed(c.ID, ifName(c.IfName)); err != nil {
		return err
	}
	if os.Geteuid() != 0 && c.app.getenv(explainInside) == "" {
		c.app.hint("for an ordinary user the host counts as empty: existing links and rules are ignored")
		return c.app.reexec(explainInside, unix.CLONE_NEWUSER|unix.CLONE_NEWNET)
	}
	n, err := c.app.network(string(c.Args.Network))
	if err != nil {
		return err
	}
	e, err := c.explain(n)
	if err != nil {
		return err
	}
	return c.app.show(e, e.text(n.CNIVersion))
}

func (c *explainCommand) explain(n *network) (*explanation, error) {
	at := chain.Attachment{ContainerID: c.ID, IfName: ifName(c.IfName)}
	var err error
	if at.Args, err = cniArgs(c.app.getenv("CNI_ARGS")); err != nil {
		return nil, err
	}
	if at.Capabilities, err = c.capabilities(c.app, n); err != nil {
		return nil, err
	}
	dry := &dryInvoker{app: c.app, out: &explanation{Network: n.Name}}
	if at.NetNS, err = c.netns(dry); err != nil {
		return nil, err
	}
	defer dry.close()
	tmp, err := os.MkdirTemp("", "patchbay-explain-")
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	defer os.RemoveAll(tmp)
	rt := c.app.runtime(n).With(chain.WithCacheDir(tmp), chain.WithRunDir(tmp), chain.WithInvoker(dry), chain.WithNoRollback())
	result, err := rt.Add(c.app.ctx, n.List, at)
	if err != nil {
		return nil, err
	}
	if dry.end != nil {
		dry.out.rename(at.NetNS, result)
	}
	dry.out.Result, err = result.As(n.CNIVersion)
	return dry.out, err
}

// rename puts an example path into the result, in the place of the temporary namespace's path.
func (e *explanation) rename(path string, r *spec.Result) {
	const name = "/run/netns/example"
	for _, p := range e.Plugins {
		for i, line := range p.State {
			p.State[i] = strings.ReplaceAll(line, path, name)
		}
	}
	for i := range r.Interfaces {
		if r.Interfaces[i].Sandbox == path {
			r.Interfaces[i].Sandbox = name
		}
	}
}

// netns returns the namespace to explain with: the one that the user named, or a new one that
// ends with this process.
func (c *explainCommand) netns(dry *dryInvoker) (path string, err error) {
	if c.NetNS != "" {
		return c.app.netnsPath(string(c.NetNS))
	}
	if path, dry.end, err = emptyNamespace(); err != nil {
		return "", c.app.noNamespaces(fmt.Errorf("explain: %w", err))
	}
	return path, nil
}

// emptyNamespace creates a namespace. A thread of this process keeps it alive until end is
// called.
func emptyNamespace() (path string, end func(), err error) {
	made, done := make(chan error), make(chan struct{})
	var tid int
	netns.GoOnThread(func() {
		tid = unix.Gettid()
		made <- unix.Unshare(unix.CLONE_NEWNET)
		<-done
	})
	if err := <-made; err != nil {
		close(done)
		return "", nil, fmt.Errorf("make namespace: %w", err)
	}
	return fmt.Sprintf("/proc/self/task/%d/ns/net", tid), func() { close(done) }, nil
}

// dryInvoker calls plugins in sessions that print the desired state and apply nothing.
type dryInvoker struct {
	app *app
	out *explanation
	end func()
}

// Invoke calls one plugin. It fails for a plugin that is not built into this program.
func (d *dryInvoker) Invoke(ctx context.Context, pluginType string, call *spec.Call) ([]byte, error) {
	steps := &pluginSteps{Type: pluginType, State: []string{}}
	d.out.Plugins = append(d.out.Plugins, steps)
	b := &plugin.Builtin{NewSession: func() *plugin.Session {
		s := d.app.session()
		s.Dry = func(line string) { steps.State = append(steps.State, line) }
		return s
	}}
	out, err := b.Invoke(ctx, pluginType, call)
	if call.Verb == spec.Check && errors.Is(err, plugin.ErrMute) {
		steps.State = append(steps.State, "another program, which cannot be asked what it made")
		return nil, nil
	}
	if errors.Is(err, invoke.ErrNotFound) {
		return nil, hinted(err, "explain needs the plugin to be built in; patchbay plugin list shows those")
	}
	return out, err
}

func (d *dryInvoker) close() {
	if d.end != nil {
		d.end()
	}
}

// text returns one block per plugin, and then the result.
func (e *explanation) text(version string) string {
	var b strings.Builder
	for _, p := range e.Plugins {
		fmt.Fprintf(&b, "# %s\n", p.Type)
		for _, line := range p.State {
			b.WriteString(line + "\n")
		}
	}
	if e.Result != nil {
		fmt.Fprintf(&b, "# result, CNI %s\n", version)
		b.WriteString(indented(e.Result))
	}
	return b.String()
}
