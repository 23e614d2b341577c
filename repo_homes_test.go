// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/plugin/all"
)

// homes lists what only one package does itself, so that one rule stands in one place.
var homes = []struct {
	what     string
	home     string            // the package's directory
	names    []string          // functions and constants: of os, unix and syscall, or of the package before the dot
	literals []string          // texts
	shapes   []string          // regular expressions of conditions, calls and functions' types, as types.ExprString writes them
	also     map[string]string // other files, with the reason
}{
	{
		what:  "lock a file: use internal/flock, or internal/durable for an error with a CNI code",
		home:  "internal/flock",
		names: []string{"Flock", "LOCK_EX", "LOCK_SH", "LOCK_NB"},
	},
	{
		what:  "write a file whole: use internal/durable",
		home:  "internal/durable",
		names: []string{"Rename", "Renameat", "Renameat2", "O_TMPFILE", "CreateTemp"},
		also: map[string]string{
			"daemons/cli/keeperlog.go":        "keeps the file that is full; the next one is written line by line",
			"cli/installer.go":                "moves a link to a program, not a file with data",
			"daemons/cnm/serve.go":            "moves a socket",
			"internal/handover/serve.go":      "moves a socket",
			"ipam/indexfile.go":               "a cache whose writer goes on changing it in place through the descriptor",
			"internal/policy/mirror/write.go": "moves a directory",
		},
	},
	{
		what:     "know libcni's cache of results: use internal/results",
		home:     "internal/results",
		literals: []string{"results", ".result-", "cniCacheV1"},
	},
	{
		what:     "compute the last address of a prefix, or know which addresses are link-local in IPv6: use internal/prefix",
		home:     "internal/prefix",
		literals: []string{"fe80::", "fe80::/10"},
		shapes: []string{
			`^func\(\w+ netip\.Prefix\) (netip\.Addr|\[\]byte)$`,
			`\.Is6\(\) && [^&|]+\.IsLinkLocalUnicast\(\)$`, `\.IsLinkLocalUnicast\(\) && [^&|]+\.Is6\(\)$`, `\.IsLinkLocalUnicast\(\) \|\| [^&|]+\.Is4\(\)$`,
		},
		also: map[string]string{
			"daemons/hosts/conf.go":            "a bridge has the first address of its block",
			"ipam/range.go":                    "no container has the broadcast address",
			"internal/policy/enforce/local.go": "beside other addresses that no rule of a local set judges",
		},
	},
	{
		what:   "ask only what is at the path of a namespace: whatever removes or reports asks life.Judge.At, which also looks at all processes",
		home:   "internal/life",
		shapes: []string{`\.AtPath\(`},
		also: map[string]string{
			"cli/doctor/attached.go":           "compares what is at the path",
			"daemons/cnm/remote/attachment.go": "an ADD: the runtime says that the container is new",
			"plugin/hostlocal/gc.go":           "an ADD: the runtime says that the container is new",
			"internal/kernel/kernel.go":        "an ADD: the runtime says that the container is new",
		},
	},
	{
		what:   "derive from traces where an attachment may be, who made it, whether it is from before the boot, or whether containerd has forgotten it: use inventory.Evidence",
		home:   "internal/inventory",
		names:  []string{"inventory.Space", "life.Suspect"},
		shapes: []string{`\.Runtime (==|!=) `, ` (==|!=) [\w.]+\.Runtime$`, `\.Caller (==|!=) nil$`, `\.Before\([\w.]*\b[bB]oot\b`},
		also: map[string]string{
			"internal/life/forgotten.go":  "judges one sandbox, with or without the caller of its ADD",
			"conformance/command/part.go": "the report of a runtime, no attachment",
		},
	},
	{
		what:  "ask whether a veth pair proves a living namespace: use kernel.Kernel.LivingPair",
		home:  "internal/kernel",
		names: []string{"netstate.Carries"},
	},
	{
		what:   "name the directory of host-local's addresses: use paths.Paths.Pools",
		home:   "internal/paths",
		shapes: []string{`^filepath\.Join\([^()]*(?i:cni), "networks"`},
	},
	{
		what:     "name the directory of records: use package record, or claim.Attachments",
		home:     "internal/claim",
		literals: []string{"attachments"},
		also:     map[string]string{"cli/doctor/doctor.go": "the name of a check"},
	},
	{
		what:  "read what a pool has reserved: use traces.Pool and traces.Reserved",
		home:  "internal/traces",
		names: []string{"ipam.FileStore", "ipam.ReadOnly"},
		also: map[string]string{
			"cli/gc/files.go":               "gives a pool the time of the boot, and releases addresses, too",
			"plugin/hostlocal/hostlocal.go": "the plugin whose pools they are",
			"daemons/hosts/grant.go":        "writes the grant of a network, and reads no reservation",
		},
	},
	{
		what:   "tell whose an element or a link is: use traces.Node.Elements and Links, or traces.IsOf for one link",
		home:   "internal/traces",
		names:  []string{"owner.FromAlias"},
		shapes: []string{`\bNFT\.Owned\(`},
	},
	{
		what:   "take the names of an attachment from a comment: use nft.NamesOf",
		home:   "internal/nft",
		shapes: []string{`^strings\.Cut\([\w.]*\b[cC]omment, " "\)$`},
		also: map[string]string{
			"internal/kernel/heirs.go":          "prints the names, also cut",
			"internal/policy/enforce/reason.go": "the comment of a policy's rule",
		},
	},
	{
		what:  "read a cached result: use traces.CachedNetNS, or package chain",
		home:  "internal/traces",
		names: []string{"results.Decode", "results.Pattern"},
		also:  map[string]string{"chain/cache.go": "a runtime, which links no netlink"},
	},
	{
		what:  "look into all namespaces: use internal/spaces",
		home:  "internal/spaces",
		names: []string{"life.Each"},
	},
	{
		what:   "list the firewall tables or chains of all programs: use nft.Conn.ReadRunning, which leaves out what the kernel does not run",
		home:   "internal/nft",
		shapes: []string{`\.List(Tables|Chains)(OfFamily|OfTableFamily)?\(`},
	},
	{
		what:     "read CNI_NETNS_OVERRIDE: use spec.NetNSOverride",
		home:     "spec",
		literals: []string{"CNI_NETNS_OVERRIDE"},
		also:     map[string]string{"invoke/exec.go": "removes it from an environment, among others"},
	},
}

func TestHomes(t *testing.T) {
	files := slices.DeleteFunc(goFiles(t), func(path string) bool { return !product(path) })
	for _, h := range homes {
		for path, why := range h.also {
			if !slices.Contains(files, path) || len(uses(t, path, h.names, h.literals, h.shapes)) == 0 {
				t.Errorf("%s needs no exception any more: %s", path, why)
			}
		}
		for _, path := range files {
			if filepath.Dir(path) == h.home || h.also[path] != "" {
				continue
			}
			for _, use := range uses(t, path, h.names, h.literals, h.shapes) {
				t.Errorf("%s: only %s may %s", use, h.home, h.what)
			}
		}
	}
}

// A plugin declares what it leaves (plugin.Plugin). So what looks for leftovers has no list of plugins, to which somebody
// would have to add the next one. cli/doctor is not among these: it judges configurations, and they name plugins.
func TestNoPluginsAboveTheirFloor(t *testing.T) {
	var names []string
	for _, p := range all.Plugins() {
		names = append(names, p.Name)
	}
	for _, path := range goFiles(t) {
		if !product(path) || !slices.Contains([]string{"cli/gc", "internal/inventory", "internal/kernel", "internal/spaces", "internal/traces"}, filepath.Dir(path)) {
			continue
		}
		others := map[string]string{"cli/gc/programs.go": "networks"} // a directory of the Docker driver
		for _, use := range uses(t, path, nil, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == others[path] }), nil) {
			t.Errorf("%s is the name of a plugin: let the plugin declare what is particular to it", use)
		}
	}
}

// uses returns the places where a file uses one of the names, one of the texts, or code of one of the shapes.
func uses(t *testing.T, path string, names, literals, shapes []string) (list []string) {
	t.Helper()
	shape := regexp.MustCompile(strings.Join(shapes, "|"))
	shaped := func(e ast.Expr) bool { return len(shapes) > 0 && shape.MatchString(types.ExprString(e)) }
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.StructType:
			return false // tags
		case *ast.FuncDecl:
			if shaped(n.Type) {
				list = append(list, set.Position(n.Pos()).String()+": "+n.Name.Name)
			}
		case *ast.BinaryExpr, *ast.CallExpr:
			if e := n.(ast.Expr); shaped(e) {
				list = append(list, set.Position(n.Pos()).String()+": "+types.ExprString(e))
			}
		case *ast.SelectorExpr:
			name := types.ExprString(n)
			of, short, _ := strings.Cut(name, ".")
			if slices.Contains(names, name) || slices.Contains([]string{"os", "unix", "syscall"}, of) && slices.Contains(names, short) {
				list = append(list, set.Position(n.Pos()).String()+": "+name)
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && slices.ContainsFunc(literals, func(l string) bool { return strings.TrimSuffix(text, "*") == l }) {
				list = append(list, set.Position(n.Pos()).String()+": "+n.Value)
			}
		}
		return true
	})
	return list
}

// TestDumpsAreRepeated: a dump that the kernel interrupted lacks entries. So outside of internal/nl, a dump of the netlink
// library is the argument of nl.Retry. (The methods of nl.Conn repeat theirs.)
func TestDumpsAreRepeated(t *testing.T) {
	dump := regexp.MustCompile(`^netlink\.\w+List(Filtered)?$`)
	set, files := parsed(t)
	for path, file := range files {
		if filepath.Dir(path) == "internal/nl" {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				return types.ExprString(n.Fun) != "nl.Retry"
			case *ast.SelectorExpr:
				if called := types.ExprString(n); dump.MatchString(called) {
					t.Errorf("%s: %s without nl.Retry", set.Position(n.Pos()), called)
				}
			}
			return true
		})
	}
}
