package redisstore

import "strings"

// escaper takes the braces out of a key: what stands between them would choose
// the Cluster slot, and keys are written by clients. It is injective because
// the escape character itself is escaped.
var escaper = strings.NewReplacer("!", "!!", "{", "!(", "}", "!)")

// unescaper undoes it.
var unescaper = strings.NewReplacer("!!", "!", "!(", "{", "!)", "}")

// name returns the name of key's hash in Redis. Keys without braces and
// exclamation marks stay as they are.
func (s *Store) name(key string) string {
	return s.prefix + escaper.Replace(key)
}

// keyOf returns the key whose hash is called name, and false where there is
// none.
func (s *Store) keyOf(name string) (string, bool) {
	key := unescaper.Replace(strings.TrimPrefix(name, s.prefix))
	return key, key != "" && s.name(key) == name
}
