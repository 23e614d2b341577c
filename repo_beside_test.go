// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"go/ast"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const besidePage = "docs/beside.md"

// taken is a kind of name or number that other programs meet on a host: a table of the page has those that the code
// takes, and no others. (test/beside compares the chains with the kernel's.)
type taken struct {
	head string         // first cell of the table's header
	what *regexp.Regexp // texts of the code that belong into the table
	not  map[string]string
	find func(*testing.T) []string // instead of what
}

var takenOnAHost = []taken{
	{
		head: "name or alias",
		what: regexp.MustCompile(`^(patchbay-[a-z]+|patchbay(-[a-z]+)?:( [a-z]+)?|pb-|pb%d|bwp|veth|cni0)$`),
		not: map[string]string{
			"patchbay-cnm": "a program", "patchbay-watch": "metadata of a request to etcd", "patchbay-policy": "the beginning of a file",
			"patchbay-probe": "a link that no kernel makes (internal/nl/tap.go)",
		},
	},
	{head: "iptables chain", what: regexp.MustCompile(`^(PATCHBAY|CNI|DOCKER|KUBE)-[A-Z-]+$`)},
	{
		head: "path",
		what: regexp.MustCompile(`^(/(run|var|etc|opt)/|/usr/(local/bin/|lib/|local/lib/|local/libexec/)|/sys/fs/cgroup/)`),
		not:  map[string]string{"/run/state": "of demo, in its own mount namespace", "/etc/": "of a container"},
	},
	{head: "socket", what: regexp.MustCompile(`^[^ ]*[a-z]\.sock$`), not: map[string]string{"/var/run/docker.sock": "Docker's"}},
	{head: "number", find: constants(`(Protocol|VNI)$`)},
	{head: "port", find: ports},
	{head: "sysctl", find: sysctls},
	{head: "systemd unit", find: units},
	{head: "name", find: annotations},
}

func TestPageOfOtherPrograms(t *testing.T) {
	page := read(t, besidePage)
	for _, k := range takenOnAHost {
		rows, code := rowsOf(page, k.head), k.inCode(t)
		if len(rows) == 0 || len(code) == 0 {
			t.Errorf("%s: table %q has %d rows, and the code %d names", besidePage, k.head, len(rows), len(code))
		}
		for _, c := range code {
			if !slices.ContainsFunc(rows, func(row string) bool { return covers(row, c) }) {
				t.Errorf("%s: table %q lacks %s", besidePage, k.head, c)
			}
		}
		for _, row := range rows {
			if !slices.ContainsFunc(code, func(c string) bool { return covers(row, c) }) {
				t.Errorf("%s: table %q has %s, which the code does not have", besidePage, k.head, row)
			}
		}
	}
}

// covers reports whether a row is about a name in the code: up to the row's placeholder, or as a path above it or to it.
func covers(row, code string) bool {
	fixed, _, open := strings.Cut(row, "<")
	return row == code || open && strings.HasPrefix(code, fixed) && fixed != "" ||
		strings.HasPrefix(row, "/") && strings.HasPrefix(code, row+"/") || strings.HasSuffix(row, "/"+code)
}

// rowsOf returns the names in the first cells of a table, of which each may have several.
func rowsOf(page, head string) (names []string) {
	_, table, _ := strings.Cut(page, "\n| "+head+" | ")
	table, _, _ = strings.Cut(table, "\n\n")
	for _, line := range strings.Split(table, "\n")[1:] {
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		names = append(names, evidence(cell)...)
	}
	return names
}

// inCode returns the names that the code has.
func (k taken) inCode(t *testing.T) (names []string) {
	t.Helper()
	if k.find != nil {
		return k.find(t)
	}
	for _, text := range texts(t) {
		if k.what.MatchString(text) && !slices.Contains(names, text) {
			if _, not := k.not[text]; !not {
				names = append(names, text)
			}
		}
	}
	return names
}

// texts returns the strings of all products, and the defaults of their flags. A list of paths is several.
func texts(t *testing.T) (list []string) {
	t.Helper()
	defaults := regexp.MustCompile(`default:"([^"]*)"`)
	inProducts(t, func(_ string, n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return true
		}
		text, _ := strconv.Unquote(lit.Value) // the parser has checked it
		if tag := defaults.FindStringSubmatch(text); tag != nil && lit.Value[0] == '`' {
			text = strings.TrimPrefix(tag[1], "unix://")
		}
		if strings.HasPrefix(text, "/") {
			list = append(list, strings.Split(text, ":")...)
		} else {
			list = append(list, text)
		}
		return true
	})
	return list
}

// inProducts walks the files of all products. conformance tests plugins, and dist makes files of an image.
func inProducts(t *testing.T, visit func(file string, n ast.Node) bool) {
	t.Helper()
	_, files := parsed(t)
	for path, file := range files {
		if product(path) && !strings.HasPrefix(path, "conformance/") && !strings.HasPrefix(path, "daemons/dist/image/") {
			ast.Inspect(file, func(n ast.Node) bool { return visit(path, n) })
		}
	}
}

// constants returns the numbers of constants with such names, as the code writes them.
func constants(names string) func(*testing.T) []string {
	want := regexp.MustCompile(names)
	return func(t *testing.T) (list []string) {
		t.Helper()
		inProducts(t, func(_ string, n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok {
				for i, value := range v.Values {
					if lit, ok := value.(*ast.BasicLit); ok && lit.Kind == token.INT && want.MatchString(v.Names[i].Name) {
						list = append(list, lit.Value)
					}
				}
			}
			return true
		})
		return list
	}
}

// ports returns the ports of flags, of the store and of the DNS server.
func ports(t *testing.T) (list []string) {
	t.Helper()
	flags := regexp.MustCompile(`long:"(port|wireguard-port|listen|services-healthz)".* default:"(?:[0-9.]*:)?([0-9]+)".* description:"`)
	other := regexp.MustCompile(`^:?(53|2379)$`)
	inProducts(t, func(file string, n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if !ok {
			return true
		}
		text := strings.Trim(lit.Value, "`\"")
		if m := flags.FindStringSubmatch(text); m != nil {
			list = append(list, m[2]+map[bool]string{true: "/udp", false: "/tcp"}[strings.HasSuffix(m[1], "port")])
		}
		if m := other.FindStringSubmatch(text); m != nil && strings.HasPrefix(file, "daemons/hosts/") {
			list = append(list, m[1]+map[string]string{"2379": "/tcp"}[m[1]])
		}
		return true
	})
	return list
}

// sysctls returns the last words of the sysctls that the code writes, with messages about links and in files.
func sysctls(t *testing.T) (list []string) {
	t.Helper()
	word := regexp.MustCompile(`(?:^|/)([a-z0-9_]+)$`)
	last := func(e ast.Expr) {
		if sum, ok := e.(*ast.BinaryExpr); ok {
			e = sum.Y
		}
		if lit, ok := e.(*ast.BasicLit); ok {
			if m := word.FindStringSubmatch(strings.Trim(lit.Value, `"`)); m != nil {
				list = append(list, m[1])
			}
		}
	}
	inProducts(t, func(_ string, n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl: // the names of settings of IPv6
			if n.Recv != nil && n.Name.Name == "String" && types.ExprString(n.Recv.List[0].Type) == "IPv6Conf" {
				ast.Inspect(n, func(n ast.Node) bool {
					if ret, ok := n.(*ast.ReturnStmt); ok {
						last(ret.Results[0])
					}
					return true
				})
			}
		case *ast.ValueSpec: // those of IPv4 have no names but the constants'
			if n.Type != nil && types.ExprString(n.Type) == "IPv4Conf" {
				list = append(list, map[string]string{"ARPNotify": "arp_notify", "RouteLocalnet": "route_localnet"}[n.Names[0].Name])
			}
		case *ast.SelectorExpr:
			if n.Sel.Name == "IFLA_INET6_ADDR_GEN_MODE" {
				list = append(list, "addr_gen_mode")
			}
		case *ast.CompositeLit:
			if value := settingOf(n); value != nil {
				last(value)
			}
		}
		return true
	})
	return list
}

// settingOf returns the key of a sysctl with its value.
func settingOf(n *ast.CompositeLit) (key ast.Expr) {
	if len(n.Elts) != 2 {
		return nil
	}
	for i, name := range []string{"Key", "Value"} {
		kv, ok := n.Elts[i].(*ast.KeyValueExpr)
		if !ok || types.ExprString(kv.Key) != name {
			return nil
		}
		if i == 0 {
			key = kv.Value
		}
	}
	return key
}

func units(t *testing.T) []string {
	t.Helper()
	var list []string
	for _, pattern := range []string{"*.service", "*.socket", "*.timer"} {
		found, err := fs.Glob(os.DirFS("daemons/dist/systemd"), pattern)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, found...)
	}
	return list
}

// annotations returns the names that the code makes in the Kubernetes API, those of the manifest that users make, and
// the prefix of keys in etcd.
func annotations(t *testing.T) (list []string) {
	t.Helper()
	for _, text := range texts(t) {
		if strings.HasPrefix(text, "/patchbay/") || strings.HasPrefix(text, "k8s.v1.cni.cncf.io/") {
			list = append(list, text)
		}
	}
	inProducts(t, func(_ string, n ast.Node) bool {
		if sum, ok := n.(*ast.BinaryExpr); ok && sum.Op == token.ADD && strings.HasSuffix(types.ExprString(sum.X), "AnnotationPrefix") {
			list = append(list, "patchbay.net/"+strings.Trim(types.ExprString(sum.Y), `"`))
		}
		return true
	})
	for _, m := range regexp.MustCompile(`configMap:\s+name: (\S+)`).FindAllStringSubmatch(read(t, "daemons/dist/kubernetes/patchbay.yaml"), -1) {
		list = append(list, m[1])
	}
	for _, m := range regexp.MustCompile(`kind: Namespace\nmetadata:\n  name: (\S+)`).FindAllStringSubmatch(read(t, "daemons/dist/kubernetes/chart/templates/patchbay.yaml"), -1) {
		list = append(list, m[1])
	}
	return list
}

// TestReasonsOfEvents compares the reasons of Events with the last paragraph of the page.
func TestReasonsOfEvents(t *testing.T) {
	_, rest, found := strings.Cut(read(t, besidePage), "They have these reasons:\n")
	page := evidence(rest)
	var code []string
	inProducts(t, func(_ string, n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && v.Type != nil && strings.HasSuffix(types.ExprString(v.Type), "Reason") && len(v.Values) == 1 {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok {
				code = append(code, strings.Trim(lit.Value, `"`))
			}
		}
		return true
	})
	if slices.Sort(code); !found || len(code) == 0 || !slices.Equal(code, page) {
		t.Errorf("%s has the reasons\n%q, the code\n%q", besidePage, page, code)
	}
}

// TestNoMarks: the page promises that all bits of marks and labels are other programs'. internal/nft/eval reads the rules
// of all programs, and patchbayd's libraries have these names too.
func TestNoMarks(t *testing.T) {
	mark := regexp.MustCompile(`^(MetaKeyMARK|NFT_META_MARK|CtKey(MARK|LABELS?)|NFT_CT_(MARK|LABELS?)|SO_MARK|Fw[Mm]ark|FirewallMark|Set[Mm]ark|CTA_(MARK|LABELS)|RTA_MARK|FRA_FWMARK|WGDEVICE_A_FWMARK)$`)
	inProducts(t, func(file string, n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && mark.MatchString(id.Name) && filepath.Dir(file) != "internal/nft/eval" {
			t.Errorf("%s: %s: %s promises that no mark is set or read", file, id.Name, besidePage)
		}
		return true
	})
}

// TestPrioritiesOfChains: the page has the priorities that the code has, also of chains that test/beside does not make.
func TestPrioritiesOfChains(t *testing.T) {
	_, table, _ := strings.Cut(read(t, besidePage), "\n| chain | type and hook | priority |")
	table, _, _ = strings.Cut(table, "\n\n")
	var page, code []string
	for _, m := range regexp.MustCompile("(?m)^\\| `[^`]+` \\| [^|]+ \\| (-?[0-9]+) \\|").FindAllStringSubmatch(table, -1) {
		page = append(page, m[1])
	}
	inProducts(t, func(_ string, n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		for i, name := range v.Names {
			if strings.HasPrefix(name.Name, "prio") && i < len(v.Values) {
				code = append(code, types.ExprString(v.Values[i]))
			}
		}
		return true
	})
	slices.Sort(page)
	slices.Sort(code)
	if page, code = slices.Compact(page), slices.Compact(code); len(code) == 0 || !slices.Equal(page, code) {
		t.Errorf("%s has the priorities %q, the code %q", besidePage, page, code)
	}
}
