// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/cli/netfile"
	"github.com/patchbay-net/patchbay/internal/packed"
	"github.com/patchbay-net/patchbay/internal/podnet"
)

const installLong = `Put this program into DIR (such as /opt/cni/bin) under the name of every
plugin. This is safe while containers start: the program is copied once and
synced, and each name is replaced by renaming a hard link. So a runtime finds
either the complete old program or the complete new one. Running processes
keep the old program.

Other programs under these names are only replaced with --backup, which keeps
them, or with --force:

  patchbay install --backup /opt/cni/bin.before /opt/cni/bin

To go back is as safe: every program in the backup directory gets its name
again by a rename, and then the names that only this program has are removed:

  patchbay install --restore /opt/cni/bin.before /opt/cni/bin

Without a backup, --remove removes this program's files:

  patchbay install --remove /opt/cni/bin

On a Kubernetes node, --kubernetes also writes the pods' network, which needs
no agent. It writes /etc/cni/patchbay.template, which containerd (conf_template)
fills with the node's podCIDRs. With --pod-cidr, for CRI-O, it writes the
network itself:

  patchbay install --kubernetes --cluster-cidr 10.244.0.0/16 /opt/cni/bin

For podman 5 and later, --podman also makes a link to the program where podman
looks for drivers of networks, and then podman network create -d patchbay works:

  patchbay install --podman /opt/cni/bin`

type installCommand struct {
	app     *app
	Backup  string   `long:"backup" value-name:"DIR" description:"keep the programs that are replaced in DIR"`
	Restore string   `long:"restore" value-name:"DIR" description:"restore the programs kept in DIR and remove this one's names"`
	Remove  bool     `long:"remove" description:"remove this program's names and copies from DIR"`
	Force   bool     `long:"force" description:"replace other programs without keeping them"`
	Only    []string `long:"only" value-name:"NAME" description:"install this plugin only; may be repeated"`
	Pods    bool     `long:"kubernetes" description:"write the pods' network of a Kubernetes node, too"`
	Cluster []string `long:"cluster-cidr" value-name:"PREFIX" description:"the cluster's pods, to which a pod's address is not masqueraded; may be repeated"`
	Node    []string `long:"pod-cidr" value-name:"PREFIX" description:"this node's pods, for a runtime without templates; may be repeated"`
	Podman  string   `long:"podman" value-name:"DIR" optional:"1" optional-value:"/usr/local/libexec/netavark" description:"make the program the driver patchbay of podman's networks, too; DIR is one of podman's netavark_plugin_dirs"`
	Source  string   `long:"from" value-name:"FILE" hidden:"1" description:"the program to install (this one)"`
	JSON    bool     `long:"json" description:"print a JSON object"`
	Args    struct {
		Dir string `positional-arg-name:"DIR" required:"1"`
	} `positional-args:"yes"`
}

// installed is what install prints.
type installed struct {
	Dir      string   `json:"dir"`
	Build    string   `json:"build,omitempty"`
	New      []string `json:"new,omitempty"`
	Replaced []string `json:"replaced,omitempty"`
	Kept     []string `json:"kept,omitempty"`     // names that were up to date
	Restored []string `json:"restored,omitempty"` // programs that came back from the backup
	Removed  []string `json:"removed,omitempty"`  // names that led only to this program
	Network  string   `json:"network,omitempty"`  // the file with the pods' network
	Podman   string   `json:"podman,omitempty"`   // the driver of podman's networks, a link

	networkChanged bool
}

// Execute makes all its checks before it changes anything.
func (c *installCommand) Execute([]string) error {
	names, err := c.names()
	if err != nil {
		return err
	}
	network, err := parsePods(c.Cluster, c.Node)
	if err != nil {
		return err
	}
	in := &installer{dir: c.Args.Dir, backup: cmp.Or(c.Restore, c.Backup)}
	driver := newPodmanDriver(c.Podman, in.dir)
	if c.puts() && c.Podman != "" {
		if err := driver.free(c.Force); err != nil {
			return err
		}
	}
	if c.Remove && !exists(in.dir) {
		return c.tell(&installed{Dir: in.dir})
	}
	unlock, err := in.open(c.app.ctx, names)
	if err != nil {
		return err
	}
	defer unlock()
	done, err := c.do(in, names)
	if done == nil {
		return err
	}
	if err == nil {
		err = errors.Join(c.pods(done, network), c.podman(done, driver))
	}
	if c.Restore != "" {
		c.app.warnStranded()
	}
	return errors.Join(c.tell(done), err)
}

// warnStranded warns about networks that the restored programs cannot run.
func (a *app) warnStranded() {
	list, err := networks(a.getenv, a.paths)
	a.warn(err)
	for _, n := range list {
		if !n.builtin && slices.Contains(netfile.Describe(n.List).Plugins, packed.Type) {
			a.warn(fmt.Errorf("network %s needs the plugin patchbay, which is gone: patchbay convert --separate %s prints it for the restored plugins", n.Name, n.File))
		}
	}
}

// pods writes the configuration of the pods' network. With --remove it removes the template.
func (c *installCommand) pods(done *installed, network podnet.Network) (err error) {
	switch {
	case c.Remove:
		return c.app.removePodTemplate()
	case c.Pods:
		done.Network, done.networkChanged, err = c.app.writePods(network)
	}
	return err
}

// puts reports whether the command installs, and neither restores nor removes.
func (c *installCommand) puts() bool { return !c.Remove && c.Restore == "" }

// podman makes the driver of podman's networks. If the programs are removed, it removes a link that would
// lead nowhere.
func (c *installCommand) podman(done *installed, driver podmanDriver) (err error) {
	switch {
	case !c.puts():
		var removed bool
		if removed, err = driver.remove(); removed {
			done.Removed = append(done.Removed, driver.link)
		}
	case c.Podman != "":
		done.Podman, err = driver.link, driver.place()
	}
	return err
}

// tell prints what was done. If remove found nothing, tell says so, because the user may have
// meant another directory.
func (c *installCommand) tell(done *installed) error {
	text := done.text()
	if c.Remove && len(done.Removed) == 0 {
		text = fmt.Sprintf("nothing of this program is in %s\n", done.Dir)
	}
	return c.app.show(done, text)
}

// do installs, restores or removes.
func (c *installCommand) do(in *installer, names []string) (*installed, error) {
	switch {
	case c.Remove:
		return in.remove(names)
	case len(in.folders) > 0:
		return nil, fmt.Errorf("install: %s is a directory", in.folders[0])
	case c.Restore != "":
		return in.restore(names, c.Force)
	}
	if len(in.foreign) > 0 && c.Backup == "" && !c.Force {
		return nil, hinted(fmt.Errorf("install into %s: it has other programs of these names: %s", in.dir, strings.Join(in.foreign, " ")),
			"--backup DIR keeps them in DIR, --force replaces them")
	}
	if c.Source == "" {
		c.Source = "/proc/self/exe"
	}
	return in.install(c.Source, names)
}

// names returns the names of the plugins to install. It refuses an unknown name in --only.
func (c *installCommand) names() (names []string, err error) {
	for _, p := range c.app.plugins {
		names = append(names, p.Name)
	}
	switch {
	case c.Restore != "" && (c.Pods || c.Backup != "" || c.Source != "" || len(c.Only) > 0):
		return nil, usage("", "--restore goes with --force and --podman only")
	case !c.Pods && len(c.Cluster)+len(c.Node) > 0:
		return nil, usage("", "--cluster-cidr and --pod-cidr go with --kubernetes")
	case c.Podman != "" && len(c.Only) > 0 && !slices.Contains(c.Only, packed.Type):
		return nil, usage("", "--podman needs the plugin %s: --only %[1]s", packed.Type)
	case c.Remove && (c.Pods || c.Restore != "" || c.Backup != "" || c.Source != "" || c.Force || len(c.Only) > 0):
		return nil, usage("", "--remove goes with no other flag than --podman")
	case len(c.Only) == 0:
		return names, nil
	}
	for _, name := range c.Only {
		if c.app.plugin(name) == nil {
			err = errors.Join(err, usage("patchbay plugin list shows the names", "no built-in plugin %q", name))
		}
	}
	return c.Only, err
}

func (d installed) text() string {
	var b strings.Builder
	for _, part := range []struct {
		what  string
		names []string
	}{{"new", d.New}, {"replaced", d.Replaced}, {"restored", d.Restored}, {"removed", d.Removed}, {"unchanged", d.Kept}} {
		if len(part.names) > 0 {
			fmt.Fprintf(&b, "%-9s  %s\n", part.what, strings.Join(part.names, " "))
		}
	}
	if d.Network != "" {
		b.WriteString(podText(d.Network, d.networkChanged))
	}
	if d.Podman != "" {
		fmt.Fprintf(&b, "%-9s  %s\n", "driver", d.Podman)
	}
	if d.Build == "" {
		return b.String()
	}
	return fmt.Sprintf("build %s in %s\n%s", d.Build, d.Dir, b.String())
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// sameFile reports whether two paths lead to the same inode. If a file is missing, they do not.
func sameFile(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Lstat(b)
	return err == nil && os.SameFile(x, y)
}
