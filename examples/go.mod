module github.com/intact-go/intact/examples

go 1.25.0

require github.com/intact-go/intact v0.0.0

replace github.com/intact-go/intact => ../
