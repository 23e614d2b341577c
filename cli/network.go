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
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/plugin"
)

// defaultConfig is the configuration of the built-in network, for a machine without any
// network's file.
//
//go:embed default.conflist
var defaultConfig string

// askTime limits how long a plugin may take to answer STATUS or VERSION.
const askTime = 5 * time.Second

// network is a network's configuration and the file it was read from. File is empty for the
// built-in network.
type network struct {
	*chain.List
	builtin bool
}

// defaultRange6 is the text of the IPv6 range in default.conflist, with the comma before it.
const defaultRange6 = `,
                            [{"subnet": "fdb6:1e5c:9a07::/64"}]`

// defaultNetwork returns the built-in network, without IPv6 if the machine has none.
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

// hasIPv6 reports whether the kernel gives IPv6 to new interfaces.
func hasIPv6(proc string) bool {
	if _, err := os.Stat(filepath.Join(proc, "net/if_inet6")); err != nil {
		return false
	}
	off, err := os.ReadFile(filepath.Join(proc, "sys/net/ipv6/conf/default/disable_ipv6"))
	return err == nil && strings.TrimSpace(string(off)) == "0"
}

// confDir returns the directory of the networks' files.
func confDir(getenv func(string) string) string {
	if dir := getenv("NETCONFPATH"); dir != "" {
		return dir
	}
	return chain.DefaultConfDir
}

// networks lists the networks in the order in which a runtime prefers them. If no network is
// configured, it lists the built-in one. If files cannot be read, it returns an error together
// with the other networks.
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

// network finds a network by name or by file. The built-in network has a name too. If a file
// defines a network of that name, network returns that one.
func (a *app) network(name string) (*network, error) {
	switch {
	case name == "": // probably a script's variable that is not set
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
	if !errors.Is(err, chain.ErrNoNetwork) {
		return nil, err
	}
	if def, derr := defaultNetwork(a.paths); derr != nil || def.Name == name {
		a.warnConfDir()
		return def, derr
	}
	text := fmt.Sprintf("no network %q; available: %s", name, strings.Join(a.available(), ", "))
	return nil, hinted(&plainError{text, err}, "networks are read from $NETCONFPATH, now %s; patchbay network ls lists them", confDir(a.getenv))
}

// given loads the file that the user named. It may be a pipe.
func given(file string) (*chain.List, error) {
	data, err := durable.ReadGiven(file)
	if err != nil {
		return nil, fmt.Errorf("error reading %s: %w", file, err)
	}
	return chain.ParseFile(file, data)
}

// available lists the names of the networks, and warns about broken files.
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

// firstNetwork returns the network that a runtime would use, or the built-in one if no network is configured. It fails
// if the first file is broken, because the user meant that file's network.
func (a *app) firstNetwork() (*network, error) {
	list, err := a.runtime(nil).Default()
	if !errors.Is(err, chain.ErrNoNetwork) {
		return &network{List: list}, err
	}
	a.warnConfDir()
	return defaultNetwork(a.paths)
}

// warnConfDir warns if $NETCONFPATH does not exist and the built-in network is used instead. The
// user meant another network.
func (a *app) warnConfDir() {
	dir := a.getenv("NETCONFPATH")
	if _, err := os.Stat(dir); dir != "" && errors.Is(err, fs.ErrNotExist) {
		a.warn(fmt.Errorf("$NETCONFPATH is %s, which does not exist: using the built-in network", dir))
	}
}

// runtime returns the chain.Runtime that calls a network's plugins. For the built-in network it
// uses only the plugins in this program. For a configured network it searches for plugins as a
// container runtime does. For a plugin that is not installed, it uses the one in this program.
func (a *app) runtime(n *network) *chain.Runtime {
	rt := chain.New(
		chain.WithPath(a.pluginPath(n)...),
		chain.WithConfDir(confDir(a.getenv)),
		chain.WithCacheDir(a.paths.CNI),
		chain.WithRunDir(a.paths.Run),
		chain.WithInvoker(watched{&plugin.Builtin{NewSession: a.session}, a}),
		chain.WithWarn(a.warn),
		chain.WithLimits(chain.Limits{Ask: askTime}),
		chain.WithFileDecides(),
	)
	if a.verbose {
		rt = rt.With(chain.WithEvent(a.logEvent))
	}
	return rt
}

func (a *app) session() *plugin.Session {
	s := plugin.NewSession(a.plugins)
	s.Paths, s.Stderr, s.Self = a.paths, a.stderr, plugin.SelfPath
	return s
}

// pluginPath returns the directories of CNI_PATH. For the built-in network it returns a directory
// that does not exist. So only the plugins in this program are found.
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
		return []string{chain.DefaultPluginDir}
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
