// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/netfile"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/plugin"
)

// defaultConfig is used where no network is configured.
//
//go:embed default.conflist
var defaultConfig string

// defaultPluginDir is where runtimes look by default.
const defaultPluginDir = "/opt/cni/bin"

// askTime is how long a plugin may take to answer STATUS or VERSION.
const askTime = 5 * time.Second

// network is a configuration and its origin. File is empty for the built-in default.
type network struct {
	*chain.List
	builtin bool
}

// defaultRange6 is the line of the default's IPv6 range, with the comma before it.
const defaultRange6 = `,
                            [{"subnet": "fdb6:1e5c:9a07::/64"}]`

// defaultNetwork returns the built-in network, without IPv6 where the machine has none.
func defaultNetwork(p paths.Paths) (*network, error) {
	config := defaultConfig
	if !hasIPv6(p.Proc) {
		config = strings.Replace(config, defaultRange6, "", 1)
	}
	list, err := chain.ParseList([]byte(config))
	if err != nil {
		return nil, fmt.Errorf("built-in network: %w", err)
	}
	return &network{List: list, builtin: true}, nil
}

// hasIPv6 reports whether new interfaces of this machine get IPv6.
func hasIPv6(proc string) bool {
	if _, err := os.Stat(filepath.Join(proc, "net/if_inet6")); err != nil {
		return false
	}
	off, err := os.ReadFile(filepath.Join(proc, "sys/net/ipv6/conf/default/disable_ipv6"))
	return err == nil && strings.TrimSpace(string(off)) == "0"
}

// confDir is the directory of the networks.
func confDir(getenv func(string) string) string {
	if dir := getenv("NETCONFPATH"); dir != "" {
		return dir
	}
	return chain.DefaultConfDir
}

// networks lists the usable networks in a runtime's order of preference: the configured
// ones, or the built-in one if there are none. The errors of broken files are joined; the
// other networks are returned as well.
func networks(getenv func(string) string, p paths.Paths) (list []*network, err error) {
	d, err := chain.LoadDir(confDir(getenv))
	if err != nil {
		return nil, fmt.Errorf("list networks: %w", err)
	}
	var errs []error
	for _, l := range d.Lists {
		list = append(list, &network{List: l})
	}
	for _, b := range d.Broken {
		errs = append(errs, b)
	}
	if len(list) > 0 || len(errs) > 0 {
		return list, errors.Join(errs...)
	}
	def, err := defaultNetwork(p)
	return []*network{def}, err
}

// network finds a network by name or file. The built-in network's name finds it unless a
// file has the same name.
func (a *app) network(name string) (*network, error) {
	switch {
	case name == "": // most likely an unset variable of a script
		return nil, usage("patchbay network ls lists the networks", "the network's name is empty")
	case strings.Contains(name, "/") || filepath.Ext(name) == ".conflist":
		list, err := given(name)
		if err != nil {
			return nil, err
		}
		return &network{List: list}, nil
	}
	list, err := a.runtime(nil).Load(name)
	if err == nil {
		return &network{List: list}, nil
	}
	if !netfile.Missing(err) {
		return nil, err
	}
	if def, derr := defaultNetwork(a.paths); derr != nil || def.Name == name {
		a.warnConfDir()
		return def, derr
	}
	text := fmt.Sprintf("no network %q; available: %s", name, strings.Join(a.available(), ", "))
	return nil, hinted(&plainError{text, err}, "networks are read from $NETCONFPATH, now %s; patchbay network ls lists them", confDir(a.getenv))
}

// given loads the file that an operator named, which may be a pipe.
func given(file string) (*chain.List, error) {
	data, err := durable.ReadGiven(file)
	if err != nil {
		return nil, fmt.Errorf("error reading %s: %w", file, err)
	}
	return chain.ParseFile(file, data)
}

// available lists the names of the networks, and warns of broken files.
func (a *app) available() (names []string) {
	list, err := networks(a.getenv, a.paths)
	a.warn(err)
	for _, n := range list {
		if !n.builtin {
			names = append(names, n.Name)
		}
	}
	if def, err := defaultNetwork(a.paths); err == nil && !slices.Contains(names, def.Name) {
		names = append(names, def.Name+" (built in)")
	}
	return names
}

// firstNetwork is the network that a runtime would use. A broken file must not make it use
// another network than the operator intended, so it is an error when the broken file comes
// first or alone.
func (a *app) firstNetwork() (*network, error) {
	list, err := networks(a.getenv, a.paths)
	if len(list) == 0 {
		return nil, err
	}
	a.warn(err)
	if list[0].builtin {
		a.warnConfDir()
	}
	return list[0], nil
}

// warnConfDir warns, when the built-in network is used, of a missing $NETCONFPATH: the
// operator intended another network.
func (a *app) warnConfDir() {
	dir := a.getenv("NETCONFPATH")
	if _, err := os.Stat(dir); dir != "" && errors.Is(err, fs.ErrNotExist) {
		a.warn(fmt.Errorf("$NETCONFPATH is %s, which does not exist: using the built-in network", dir))
	}
}

// runtime returns a runtime for a network. The built-in network uses built-in
// plugins only; a configured one finds its plugins as a container runtime
// would, and those that are not installed are built in.
func (a *app) runtime(n *network) *chain.Runtime {
	rt := &chain.Runtime{
		Path:     a.pluginPath(n),
		ConfDir:  confDir(a.getenv),
		CacheDir: a.paths.CNI,
		RunDir:   a.paths.Run,
		Invoker:  watched{&plugin.Builtin{NewSession: a.session}, a},
		Warn:     a.warn,
		AskTime:  askTime,

		FileDecides: true,
	}
	if a.verbose {
		rt.Event = a.logEvent
	}
	return rt
}

func (a *app) session() *plugin.Session {
	s := plugin.NewSession(a.plugins)
	s.Paths, s.Stderr, s.Self = a.paths, a.stderr, plugin.SelfPath
	return s
}

// pluginPath is CNI_PATH. For the built-in network it is a directory that does not exist,
// so that only this program's plugins are found.
func (a *app) pluginPath(n *network) []string {
	if n != nil && n.builtin {
		return []string{filepath.Join(a.paths.Run, "no-plugins")}
	}
	var dirs []string
	for _, dir := range filepath.SplitList(a.getenv("CNI_PATH")) {
		if dir != "" {
			dirs = append(dirs, dir)
		}
	}
	if len(dirs) == 0 {
		return []string{defaultPluginDir}
	}
	return dirs
}

// capability reports whether a plugin of the network declares the capability.
func (n *network) capability(name string) bool {
	for _, p := range n.Plugins {
		if p.Capabilities[name] {
			return true
		}
	}
	return false
}
